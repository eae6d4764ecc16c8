#!/bin/sh
# debian-packages.sh venv|demo|test|runtime: install the Debian packages that a make target is better with.
# As root or with a sudo that asks nothing; otherwise it prints the one command to type and goes on with what is there.
set -eu

case "${1:?venv, demo, test or runtime}" in
  venv)
    python=${PYTHON:-python3}
    "$python" -c 'import ensurepip, venv' 2>/dev/null && exit 0
    wanted=$("$python" -c 'import sys; print("python3.%d-venv" % sys.version_info[1])') ;;
  demo) wanted="ffmpeg" ;;
  runtime) wanted="g++-aarch64-linux-gnu protobuf-compiler ccache gcc libc6-dev" ;;
  test)
    wanted="mosquitto mosquitto-clients ffmpeg python3-gi gir1.2-gst-rtsp-server-1.0 gir1.2-gst-plugins-base-1.0
      gstreamer1.0-plugins-base gstreamer1.0-plugins-good gstreamer1.0-plugins-ugly"
    # An arm64 machine needs no emulator: it runs those tests as it is.
    [ "$(uname -m)" = x86_64 ] && wanted="$wanted qemu-user-static"
    # A systemd of the tests' own, in a container that root alone can start.
    [ "$(id -u)" = 0 ] && wanted="$wanted debootstrap systemd systemd-container" ;;
esac

command -v dpkg-query >/dev/null 2>&1 || { echo "not a Debian system: going on without $wanted" >&2; exit 0; }

missing=""
for package in $wanted; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ]; then as_root=""
elif sudo -n true 2>/dev/null; then as_root="sudo"
else
  echo "Some parts need Debian packages. Type this once, or go on without them:" >&2
  echo "  sudo apt-get install --no-install-recommends$missing" >&2
  exit 0
fi

echo "installing Debian packages:$missing" >&2
export DEBIAN_FRONTEND=noninteractive
# A mosquitto of the system's own would take port 1883 and start at boot: only the program is wanted here.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
  $as_root chmod 755 "$policy"
  trap '$as_root rm -f "$policy"' EXIT
fi
# shellcheck disable=SC2086
$as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>&1 || {
  $as_root apt-get update -qq
  $as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
} || { echo "apt-get could not install them: going on without$missing" >&2; exit 0; }
