"""Defences side by side: what each costs legitimate clients, and what the best attack gets."""
