"""One head whose scores turn with distance, from scalar answers."""
