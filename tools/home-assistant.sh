#!/bin/sh
# home-assistant.sh FOLDER: install Home Assistant below FOLDER, and print the path of a program that is its `hass`.
# With a python3.13 (3.13.2 or later) on PATH in a virtual environment; without one, as root on Debian, in a small system of its own.
set -eu

folder=${1:?where to install it}
here=$(cd "$(dirname "$0")/.." && pwd)
wanted="$here/tests/support/home-assistant.txt"
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
ready="$folder/hass"

if [ -x "$ready" ] && cmp -s "$wanted" "$folder/installed.txt"; then
  echo "$ready"
  exit 0
fi

# A shim of a version manager may be there without what it stands for; and 3.13.0 is too old.
if python3.13 -c 'import sys; sys.exit(sys.version_info < (3, 13, 2))' 2>/dev/null; then
  python3.13 -m venv "$folder/venv"
  "$folder/venv/bin/python" -m pip install --quiet -r "$wanted" >&2
  printf '#!/bin/sh\nexec "%s/venv/bin/hass" "$@"\n' "$folder" >"$ready"
elif [ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null 2>&1; then
  root="$folder/root"
  if [ ! -e "$root/.made" ]; then
    rm -rf "$root"
    debootstrap --variant=minbase --include=python3-venv,python3-dev,gcc,g++,libc6-dev,ca-certificates,libturbojpeg0 \
      trixie "$root" >&2
    touch "$root/.made"
  fi
  # This machine's ways to the network and to the package index are the small system's too.
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
  [ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$root/etc/pip.conf"
  cp "$wanted" "$root/home-assistant.txt"
  chroot "$root" python3 -m venv /opt/hass
  chroot "$root" /opt/hass/bin/python -m pip install --quiet -r /home-assistant.txt >&2
  # The caller's folder is seen at its own path; process and signals are Home Assistant's own.
  cat >"$ready" <<EOF
#!/bin/sh
# hass -c CONFIG ...
exec unshare --mount -- sh -c '
  mkdir -p "$root/\$2" && mount --bind "\$2" "$root/\$2" && exec chroot "$root" /opt/hass/bin/hass "\$@"
' hass "\$@"
EOF
else
  echo "Home Assistant needs Python 3.13.2: put a python3.13 on PATH, or run this as root on Debian with debootstrap" >&2
  exit 1
fi
chmod 755 "$ready"
cp "$wanted" "$folder/installed.txt"
echo "$ready"
