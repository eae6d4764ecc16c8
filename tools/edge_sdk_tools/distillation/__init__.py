"""Check a distilled student against its teacher, image by image."""
