# Twenty stops and twenty kills of the daemon under fio, 64 requests at a time, each block verified: no error, and how long the longest request took,
# beside that of a few seconds without any. By the kernel's NBD client, and by its userspace block driver.
#: disk=8G
. /job/lib.sh

# What is overwritten stays in the store: no daemon lives for as long as it is kept. So memory does not hold it.
mkfs.ext4 -q /dev/disk/vm/disk; mkdir /disk; mount /dev/disk/vm/disk /disk; mkdir /disk/store
tank="/disk/store/tank --create 1G --journal-size 256M"

# As a service: who stops it waits for no network.
echo 'drain-timeout = "0s"' > /tmp/cistern.toml
export CISTERN_CONFIG=/tmp/cistern.toml
stop() { kill -TERM "$daemon"; wait "$daemon" || [ $? = 8 ] || fail "a stop ends with $?"; }
serve
for driver in "" --ublk; do
  echo "driver: ${driver:-nbd}"
  "$cistern" attach tank $driver
  dev=$(readlink /dev/cistern/tank)
  echo "none:"
  verified_over "$dev"
  for ending in stop crash; do
    echo "$ending:"
    verified_over "$dev" $(printf "$ending %.0s" {1..20})
    echo "new connections so far: $(new_connections)"
  done
  "$cistern" detach tank
done
stop
