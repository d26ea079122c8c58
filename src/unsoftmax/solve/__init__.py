"""Readings → matrices, each with the error that passes on."""
