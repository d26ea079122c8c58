"""Hyperplanes as lines and circles meet them: breakpoints, cells, centres."""
