"""Programs in and out: JSON that is not trusted, Python text that is run as printed."""
