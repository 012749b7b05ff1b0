# The daemon is gone for minutes with a pool in use, and the store for as long: whoever uses the pool waits or goes on, and nothing fails.
. /job/lib.sh
modprobe zfs
gone_s=${GONE_S:-120}
modprobe loop; mkdir /store
truncate -s 1200M /srv/image; mkfs.ext4 -q /srv/image; mount -o loop /srv/image /store
ready() { exec 3< /tmp/ready; rm /tmp/ready; read -r line <&3; case $line in serving*) ;; *) fail "the daemon says: $line" ;; esac; }
start() { mkfifo /tmp/ready; "$cistern" serve /store/tank "$@" > /tmp/ready 2>> /tmp/serve.log & daemon=$!; ready; }
start --create 1G --journal-size 512M
"$cistern" attach tank
zpool create -f -o ashift=12 -o cachefile=none -O compression=off pool /dev/cistern/tank
head -c 64M /dev/urandom > /pool/file; zpool sync pool; sha256sum /pool/file > /tmp/sum
( while [ ! -e /tmp/enough ]; do head -c 256K /dev/urandom > /pool/f$((RANDOM % 50)) || touch /tmp/failed; sync /pool || touch /tmp/failed; echo >> /tmp/rounds; sleep 0.05; done ) &
load=$!
until [ -s /tmp/rounds ]; do sleep 0.1; done

crash
sleep "$gone_s"
start
was=$(wc -l < /tmp/rounds); begin=$(date +%s%N)
until [ "$(wc -l < /tmp/rounds)" -gt "$was" ]; do sleep 0.05; done
echo "gone for $gone_s s; the writer goes on $((($(date +%s%N) - begin) / 1000000)) ms after the new daemon serves"
[ ! -e /tmp/failed ] || fail "a write failed"

# The store takes nothing any more; what is written stays in the journal.
fsfreeze -f /store
was=$(wc -l < /tmp/rounds)
for i in $(seq "$gone_s"); do
  sleep 1
  ! "$cistern" status --json | grep -q '"latched": "' || fail "it stopped: $("$cistern" status)"
done
rounds=$(($(wc -l < /tmp/rounds) - was))
echo "the store is away for $gone_s s: $rounds rounds of the writer went on; $("$cistern" status | head -3 | tr -s ' \n' ' ')"
[ "$rounds" -gt 0 ] || fail "the writer stood still"
fsfreeze -u /store
touch /tmp/enough; wait $load
[ ! -e /tmp/failed ] || fail "a write failed"
"$cistern" drain /store/tank
sha256sum -c --quiet /tmp/sum
zpool scrub -w pool
zpool status -v pool | grep -q 'No known data errors' || fail "$(zpool status -v pool)"
zpool export pool
no_errors
"$cistern" detach tank
stop
