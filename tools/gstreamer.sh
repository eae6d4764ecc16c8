#!/bin/sh
# gstreamer.sh FOLDER: make a small Debian below FOLDER whose OpenCV has GStreamer, which the wheels' has not, and print the path of a
# program that is its `python`, with this checkout where it is. As root on Debian with debootstrap.
set -eu

folder=${1:?where to make it}
here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
root="$folder/root"
ready="$folder/python"

if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null 2>&1; then
  echo "an OpenCV with GStreamer needs a small system of its own: run this as root on Debian with debootstrap" >&2
  exit 1
fi
if [ ! -x "$ready" ] || ! cmp -s "$here/constraints.txt" "$root/constraints.txt"; then
  if [ ! -e "$root/.made" ]; then
    rm -rf "$root"
    debootstrap --variant=minbase --include=ca-certificates,python3-venv trixie "$root" >&2
    touch "$root/.made"
  fi
  # This machine's ways to the network and to the package index are the small system's too.
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
  [ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$root/etc/pip.conf"
  export DEBIAN_FRONTEND=noninteractive
  chroot "$root" apt-get update -qq >&2
  # debootstrap itself cannot sort out what these depend on.
  chroot "$root" apt-get install -y -qq --no-install-recommends python3-opencv python3-gi ffmpeg \
    gir1.2-gst-rtsp-server-1.0 gir1.2-gst-plugins-base-1.0 gstreamer1.0-plugins-base gstreamer1.0-plugins-good \
    gstreamer1.0-plugins-bad gstreamer1.0-plugins-ugly gstreamer1.0-libav >&2
  cp "$here/constraints.txt" "$root/constraints.txt.new"
  chroot "$root" python3 -m venv --system-site-packages /opt/edge
  # All that edge-sdk needs but the wheel of OpenCV, which would hide Debian's.
  chroot "$root" /opt/edge/bin/python -m pip --disable-pip-version-check install --quiet -c /constraints.txt.new click \
    cryptography jinja2 joblib msgspec onnx onnxruntime paho-mqtt pillow pytest pytest-timeout \
    rich scipy >&2
  mv "$root/constraints.txt.new" "$root/constraints.txt"
fi
cat >"$ready" <<EOF
#!/bin/sh
# python ARGUMENTS...
exec unshare --mount -- sh -c '
  mount --bind /dev "$root/dev" && mount --rbind /proc "$root/proc" && mount -t tmpfs tmpfs "$root/tmp" &&
  mkdir -p "$root/$here" && mount --bind "$here" "$root/$here" &&
  exec chroot "$root" env -C "$here" PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$here:$here/tools" /opt/edge/bin/python "\$@"
' python "\$@"
EOF
chmod 755 "$ready"
echo "$ready"
