# The commands of docs/zfs.md as they are written there, with a directory for the bucket.
. /job/lib.sh

modprobe zfs
cistern() { "$cistern" "$@"; }
awk '/^```sh$/ { inside = 1; next } /^```$/ { inside = 0; print "# end of a block"; next } inside' /job/zfs.md > /tmp/commands
sed -i 's|^export URL=.*|export URL=/srv/tank|; s,^cistern doctor.*,cistern doctor || true,; s|--size 2T|--size 1G|' /tmp/commands
sed -n '1,/^# end of a block$/p' /tmp/commands > /tmp/first
sed '1,/^# end of a block$/d' /tmp/commands > /tmp/second
grep -q 'cistern rollback' /tmp/first && grep -q 'up tank --on' /tmp/second || fail "the page has other commands than this case knows"
. /tmp/first
[ -e /tank/etc/hostid ] || fail "what was there on Monday is not"
cistern down tank > /tmp/said
grep -q "safe to disconnect" /tmp/said || fail "down says: $(cat /tmp/said)"
export STATE_DIRECTORY=/tmp/state-2 CACHE_DIRECTORY=/tmp/cache-2
. /tmp/second
[ -e /tank/etc/hostid ] || fail "another host does not see it"
cistern down tank > /tmp/said
grep -q "safe to disconnect" /tmp/said || fail "down says: $(cat /tmp/said)"
no_errors
