"""OpenCV, imported in one place: every module takes it from here (`from edge_sdk.core.opencv import cv2`).

OpenCV's package takes itself out of `sys.modules` while it loads its native part. A second thread that runs
`import cv2` at that moment gets a module without its submodules. Importing this module instead is safe: Python has
other threads wait until its body has run, and that imports OpenCV once.
"""

import cv2

__all__ = ["cv2"]
