# A pool on a volume of 100 TiB behind a link of 20 ms, on a host that never saw it: how long each step of one command up and one down takes,
# and how much of it is the link. Prints what it measures.
#: disk=4G host
. /job/lib.sh
. /job/host
export SSL_CERT_FILE=/job/certificates
mkfs.ext4 -q /dev/disk/vm/disk; mkdir /disk; mount /dev/disk/vm/disk /disk
modprobe zfs; modprobe nbd
export RUNTIME_DIRECTORY=/tmp/run
serve_with="--journal-size 256M --cache-size 256M"
on_host() { export STATE_DIRECTORY=/disk/state-$1 CACHE_DIRECTORY=/disk/cache-$1; }
# Beside each step, when it began, in ms after the first look.
timed() {
  local begin line; begin=$(date +%s%N)
  "$cistern" "$@" 2>&1 | while read -r line; do echo "  $((($(date +%s%N) - begin) / 1000000)) $line"; done
  [ "${PIPESTATUS[0]}" = 0 ] || fail "$*"
  echo "  $((($(date +%s%N) - begin) / 1000000)) is the end of it"
}

on_host 0
"$cistern" up tank --on s3://tank/far --size 100T -- $serve_with > /dev/null
head -c 64M /dev/urandom > /tank/file; zpool sync tank
sha256sum /tank/file > /tmp/sum
"$cistern" down tank > /dev/null
n=0
for link in "wide" "20 30" "wide" "20 30"; do
  n=$((n + 1)); on_host $n
  ask link $link
  echo "up, link $link:"; timed up tank --on s3://tank/far -- $serve_with
  sha256sum -c --quiet /tmp/sum
  "$cistern" drain s3://tank/far > /dev/null
  echo "down, link $link:"; timed down tank
done
no_errors
