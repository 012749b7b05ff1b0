# Sourced by ./try and ./test: cargo, and the linker that cargo needs before it can build the rest.
command -v cargo >/dev/null || PATH="$HOME/.cargo/bin:$PATH"
command -v cargo >/dev/null || { echo "cargo is missing: install Rust, see https://rustup.rs" >&2; exit 1; }
if ! command -v cc >/dev/null || ! command -v c++ >/dev/null; then
  [ "$(id -u)" = 0 ] || { echo "no C compiler: as root, apt-get install build-essential" >&2; exit 1; }
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends build-essential >/dev/null
fi
