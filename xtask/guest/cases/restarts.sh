# Twenty stops and twenty kills of the daemon under fio, 64 requests at a time, each block verified: no error, and how long the longest request took,
# beside that of a few seconds without any.
. /job/lib.sh

# As a service: who stops it waits for no network.
echo 'drain-timeout = "0s"' > /tmp/cistern.toml
export CISTERN_CONFIG=/tmp/cistern.toml
stop() { kill -TERM "$daemon"; wait "$daemon" || [ $? = 8 ] || fail "a stop ends with $?"; }
serve
"$cistern" attach tank
echo "none:"
verified_over /dev/cistern/tank
for ending in stop crash; do
  echo "$ending:"
  verified_over /dev/cistern/tank $(printf "$ending %.0s" {1..20})
  echo "new connections so far: $(new_connections)"
done
"$cistern" detach tank
stop
