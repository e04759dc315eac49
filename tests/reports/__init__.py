"""Public reports against torch's own AOTAutograd, as programs of ours with what is known of them today."""
