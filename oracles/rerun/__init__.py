"""Further runs that tell a rounding or a layout effect from a bug (metamorphic reruns)."""
