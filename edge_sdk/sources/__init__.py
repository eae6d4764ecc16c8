"""Sources of frames: cameras, network streams, video files and folders of pictures."""
