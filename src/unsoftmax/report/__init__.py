"""Pictures of what was recovered."""
