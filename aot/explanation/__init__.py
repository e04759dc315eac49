"""What a compile did, as text and as one HTML page."""
