"""From a key to its place: hashing, shards and the split of a batch by destination."""
