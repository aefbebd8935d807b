"""The control loop: decides from measurements how many cores each executor has, and on which nodes."""
