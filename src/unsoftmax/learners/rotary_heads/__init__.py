"""Several heads whose scores turn with distance, from scalar answers."""
