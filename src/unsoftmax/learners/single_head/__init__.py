"""One attention head: a module or a folder per theorem."""
