"""Whether to believe a model: fresh answers against what its errors allow."""
