"""What is known of one tensor: geometry, views, version counter, subclass structure, symbolic sizes."""
