"""What commands print with: consoles, tables, progress bars, and quantities as text."""
