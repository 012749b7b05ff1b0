//! The dashboard as somebody sees it: a real page in a real browser, of a real daemon under a real load.

mod daemon;

use std::{fs, path::PathBuf, thread::JoinHandle, time::Duration};

use cistern::quantity::{ByteSize, Span, Thousands, money};
use cistern_harness::browser::{Looks, Page};
use daemon::{Daemon, Home, nbdsh};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
/// How long anything may take to show; far above the second or two that it takes.
const SHOWS: Duration = Duration::from_secs(600);
/// What the page may weigh, with everything it needs to be drawn.
const PAGE_BYTES_MAX: u64 = 150 << 10;

const PANELS: [&str; 10] =
    ["safe", "throughput", "requests", "latency", "journal", "cache", "space", "money", "store", "snapshots"];

/// A daemon with the dashboard at an address, and what else `serve` is told. What is dirty stays so until somebody drains.
fn start(home: &Home, address: &str, arguments: &[&str]) -> (Daemon, String) {
    launch(home, address, "1h", arguments)
}

fn launch(home: &Home, address: &str, dirty_age: &str, arguments: &[&str]) -> (Daemon, String) {
    let small = ["serve", "--journal-size", "128M", "--cache-size", "64M", "--max-dirty-age", dirty_age];
    let mut daemon =
        Daemon::start(home.command(&[&small[..], &["--dashboard", address], arguments].concat()));
    let url = daemon.told("dashboard: ");
    (daemon, url)
}

/// The page of a daemon, once it shows its panels.
fn open(url: &str, looks: Looks) -> Page {
    let mut page = Page::open(looks).expect("a browser");
    page.go(url).expect("the page is there");
    wait_for(&mut page, "document.body.dataset.state === 'live'");
    page
}

fn wait_for(page: &mut Page, expression: &str) -> Value {
    page.wait_for(expression, SHOWS).unwrap_or_else(|e| panic!("{e:#}"))
}

fn eval(page: &mut Page, expression: &str) -> Value {
    page.eval(expression).unwrap_or_else(|e| panic!("{e:#}"))
}

fn text(page: &mut Page, selector: &str) -> String {
    page.text(selector).unwrap_or_else(|e| panic!("{e:#}"))
}

fn wait_for_verdict(page: &mut Page, title: &str) {
    wait_for(page, &format!("document.querySelector('#verdict').textContent === {}", json!(title)));
}

/// Nothing was wrong on the page, and it asked nobody but its daemon.
fn assert_quiet(page: &mut Page, url: &str) {
    assert_eq!(page.complaints().expect("the browser answers"), [""; 0]);
    let asked = page.asked().expect("the browser answers");
    assert!(asked.len() > PANELS.len(), "the page asked for its parts: {asked:?}");
    let elsewhere: Vec<_> = asked.iter().filter(|asked| !asked.url.starts_with(url)).collect();
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
}

/// Runs axe-core over what is shown; it must find nothing.
fn assert_accessible(page: &mut Page, what: &str) {
    let axe = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/axe.min.js");
    eval(page, &format!("{};0", fs::read_to_string(axe).expect("axe-core is there")));
    let found = eval(
        page,
        "axe.run().then(({ violations, passes }) => ({ passes: passes.length, found: violations.map(({ id, nodes }) =>
           `${id}: ${nodes.map(({ html, failureSummary }) => html + ' ' + failureSummary).join('; ')}`) }))",
    );
    assert!(found["passes"].as_u64() > Some(20), "{what}: it looked: {found}");
    assert_eq!(found["found"], json!([]), "{what}");
}

/// A client that writes, reads, flushes and trims until this is dropped.
struct Load {
    stop: PathBuf,
    client: Option<JoinHandle<()>>,
}

impl Load {
    fn start(home: &Home, daemon: &Daemon) -> Load {
        let stop = home.path("stop-the-load");
        let script = format!(
            "import os, itertools\n\
             for i in itertools.count():\n\
             \x20   if os.path.exists({stop:?}): break\n\
             \x20   h.pwrite(os.urandom(1 << 16), (i % 512) << 16)\n\
             \x20   h.pread(1 << 16, (64 << 20) + ((i * 37 % 1024) << 16))\n\
             \x20   if i % 4 == 0: h.flush()\n\
             \x20   if i % 8 == 0: h.trim(1 << 16, 200 << 20)\n",
            stop = stop.to_str().expect("UTF-8")
        );
        let uri = daemon.uri.clone();
        let client = std::thread::spawn(move || {
            let output = nbdsh(&uri, &script);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() || said.contains("recv"), "{said}");
        });
        Load { stop, client: Some(client) }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        fs::write(&self.stop, "").expect("writable");
        let ended = self.client.take().map(JoinHandle::join);
        let _ = fs::remove_file(&self.stop);
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()), "the load failed");
    }
}

/// Waits until the table of a panel has a figure in each of these columns that is known and not nothing.
fn wait_for_figures(page: &mut Page, panel: &str, columns: &[usize]) {
    for column in columns {
        wait_for(
            page,
            &format!(
                "[...document.querySelectorAll('#{panel} tbody tr')].some((row) =>
                   !/^(–|0( bytes)?(\\/s)?|0s|0us|0\\.00)$/.test(row.children[{column} + 1].textContent))"
            ),
        );
    }
}

/// Waits until the canvas of a panel has its lines: points in the colours that the style sheet gives them. They are read from a
/// copy, which the browser is told of: it complains of whoever reads often what it keeps for drawing.
fn wait_for_lines(page: &mut Page, panel: &str) {
    let found = format!(
        "(() => {{
           const canvas = document.querySelector('#{panel} canvas');
           const style = getComputedStyle(document.documentElement);
           const wanted = ['--one', '--two', '--three', '--four'].map((name) =>
             style.getPropertyValue(name).trim().match(/[0-9a-f]{{2}}/g).map((hex) => parseInt(hex, 16)));
           const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', {{ willReadFrequently: true }});
           copy.drawImage(canvas, 0, 0);
           const {{ data }} = copy.getImageData(0, 0, canvas.width, canvas.height);
           let found = 0;
           for (let i = 0; i < data.length; i += 4) {{
             if (data[i + 3] < 250) continue;
             if (wanted.some((rgb) => rgb.every((part, k) => Math.abs(part - data[i + k]) < 12))) found += 1;
           }}
           return found > 20;
         }})()"
    );
    wait_for(page, &found);
}

/// Every panel shows what a client did: its table has figures for what happens under a load, its chart has lines, and what stands above
/// is known. The header names volume, version, process, clients. Sizes of requests are those that `status --io` counts. Nothing
/// complains, nothing is asked of anybody else, and the whole page is small.
#[test]
fn every_panel_shows_a_real_load() {
    let home = Home::new();
    fs::write(home.path("settings.toml"), "[prices]\nkind = 's3-standard'\n").expect("writable");
    let again = ["./tank", "--config", "settings.toml"];
    let first = [&again[..], &["--create", "1G"]].concat();
    let (daemon, _) = launch(&home, "127.0.0.1:0", "1s", &first);
    daemon.nbdsh("import os\nfor i in range(64): h.pwrite(os.urandom(1 << 20), (64 + i) << 20)\nh.flush()");
    daemon.stop();
    // What was written is read from the chunk cache now, or from the store.
    let (daemon, url) = launch(&home, "127.0.0.1:0", "1s", &again);
    let mut page = open(&url, Looks::LIGHT);
    let load = Load::start(&home, &daemon);
    home.ok(&["snapshot", "./tank@first"]);

    let buttons = "document.querySelectorAll('.panel [aria-pressed]').forEach((button) => button.click())";
    eval(&mut page, buttons);
    for (panel, columns) in PANELS.into_iter().zip([
        &[0, 1][..],
        &[0, 1, 2, 3],
        &[0, 1, 2, 3],
        &[0, 1, 2, 3, 4, 5],
        &[0, 1],
        &[0, 3],
        &[0],
        &[0, 1],
        &[1, 2],
        &[0, 1],
    ]) {
        wait_for_figures(&mut page, panel, columns);
    }
    eval(&mut page, buttons);
    for panel in PANELS {
        wait_for_lines(&mut page, panel);
    }
    let money = "document.querySelector('#money .figures dd').textContent";
    wait_for(&mut page, &format!("/^0\\.0*[1-9][0-9]* USD|^[1-9].* USD/.test({money})"));
    wait_for(&mut page, "document.querySelector('#snapshots .figures dd').textContent === '1'");
    wait_for(&mut page, "document.querySelector('#store .figures dd').textContent === 'it answers'");
    let head = text(&mut page, "header.top").replace('\n', " ");
    let pid = format!("process {}", daemon.pid());
    for part in
        ["cistern tank", "clients 1", "devices none", &pid, concat!("version ", env!("CARGO_PKG_VERSION"))]
    {
        assert!(head.contains(part), "{part}: {head}");
    }

    drop(load);
    eval(&mut page, "document.querySelector('#requests [aria-haspopup]').click()");
    let shown = daemon::json(&home.ok(&["status", "--io", "--json"]));
    let kinds = shown["daemons"][0]["volumes"][0]["io"]["kinds"].as_array().expect("a list");
    let writes = kinds.iter().find(|kind| kind["kind"] == "write").expect("listed")["requests"].as_u64();
    let writes = Thousands(writes.expect("a number")).to_string();
    let cells = "[...document.querySelectorAll('dialog td')].map((cell) => cell.textContent)";
    wait_for(&mut page, &format!("{cells}.includes({})", json!(writes)));
    assert_quiet(&mut page, &url);
    let weight: u64 = page
        .asked()
        .expect("the browser answers")
        .iter()
        .filter(|asked| !asked.url.contains("/api/"))
        .map(|asked| asked.received_bytes)
        .sum();
    assert!(weight > 50 << 10 && weight <= PAGE_BYTES_MAX, "{weight} bytes were transferred");
    daemon.stop();
}

/// The verdict follows the volume by itself: safe, not safe with what is missing once somebody wrote, and safe again when that is in the
/// store. It alone is announced.
#[test]
fn the_verdict_follows_the_volume() {
    let home = Home::new();
    let (daemon, url) = start(&home, "127.0.0.1:0", &["./tank", "--create", "1G"]);
    let mut page = open(&url, Looks::LIGHT);
    wait_for_verdict(&mut page, "Safe to disconnect");
    daemon.fill(7, 0, MIB);
    wait_for_verdict(&mut page, "Not safe to disconnect");
    let dirty = home.status()["daemons"][0]["volumes"][0]["dirty_bytes"].as_u64().expect("a number");
    let dirty = ByteSize(dirty).to_string();
    wait_for(&mut page, &format!("document.querySelector('#safe .figures dd').textContent === '{dirty}'"));
    let detail = text(&mut page, ".verdict .detail");
    assert!(detail.starts_with(&format!("{dirty} not in the store, the oldest for ")), "{detail}");
    home.ok(&["drain", "./tank"]);
    wait_for_verdict(&mut page, "Safe to disconnect");
    let announced = "[...document.querySelectorAll('[aria-live], [role=status], [role=alert], [role=log]')].map(({ id }) => id)";
    assert_eq!(eval(&mut page, announced), json!(["verdict"]));
    assert_quiet(&mut page, &url);
    daemon.stop();
}

/// A daemon that ends says so on the page, and since when; what is below is not taken for the present. One that starts at the same address
/// is found without a reload, and what was seen before stays in the picture.
#[test]
fn a_restart_of_the_daemon_is_survived() {
    let home = Home::new();
    let (daemon, url) = start(&home, "127.0.0.1:0", &["./tank", "--create", "1G"]);
    let address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let mut page = open(&url, Looks::LIGHT);
    daemon.fill(1, 0, MIB);
    wait_for_verdict(&mut page, "Not safe to disconnect");
    eval(&mut page, "window.isTheSame = true; document.querySelector('#requests [aria-pressed]').click()");
    wait_for_figures(&mut page, "requests", &[1]);
    daemon.kill();
    wait_for_verdict(&mut page, "Not known whether it is safe");
    let told = text(&mut page, "#gone");
    assert!(told.contains("The daemon does not answer. Since ") && told.contains("Next try in "), "{told}");
    assert_accessible(&mut page, "without a daemon");

    let (daemon, _) = start(&home, &address, &["./tank"]);
    let pid = daemon.pid();
    wait_for(&mut page, "document.body.dataset.state === 'live' && document.querySelector('#gone').hidden");
    wait_for(&mut page, &format!("document.querySelector('#daemon').textContent.includes('{pid}')"));
    wait_for_verdict(&mut page, "Not safe to disconnect");
    assert_eq!(eval(&mut page, "window.isTheSame"), json!(true), "it was not loaded again");
    wait_for_figures(&mut page, "requests", &[1]);
    home.ok(&["drain", "./tank"]);
    wait_for_verdict(&mut page, "Safe to disconnect");
    daemon.stop();
}

/// A store that is away is named with what goes on, and not any more once it is back.
#[test]
fn a_store_away_shows_on_the_page() {
    let home = Home::new();
    let (daemon, url) = start(&home, "127.0.0.1:0", &["./tank", "--create", "1G"]);
    let mut page = open(&url, Looks::LIGHT);
    daemon.fill(5, 0, MIB);
    fs::rename(home.path("tank"), home.path("away")).expect("renamed");
    home.fails(8, &["drain", "./tank", "--timeout", "5s"]);
    let notice = "document.querySelector('.notices').textContent";
    wait_for(
        &mut page,
        &format!(
            "{notice}.includes('The store does not answer for ') && {notice}.includes('room for more writes')"
        ),
    );
    wait_for(&mut page, "document.querySelector('#store .figures dd').textContent.startsWith('away for ')");
    wait_for_verdict(&mut page, "Not safe to disconnect");
    assert_accessible(&mut page, "with the store away");
    fs::rename(home.path("away"), home.path("tank")).expect("renamed");
    home.ok(&["drain", "./tank"]);
    wait_for_verdict(&mut page, "Safe to disconnect");
    wait_for(&mut page, "document.querySelector('.notices').hidden");
    assert_quiet(&mut page, &url);
    daemon.stop();
}

/// A volume that another host took over has stopped: the page says why, and never that it is safe.
#[test]
fn a_stopped_volume_shows_why() {
    let home = Home::new();
    let (old, url) = start(&home, "127.0.0.1:0", &["./tank", "--create", "1G"]);
    old.fill(1, 0, MIB);
    let mut page = open(&url, Looks::LIGHT);
    let new = Home::new();
    let writer = new.start(&[home.path("tank").to_str().expect("UTF-8"), "--take-over"]);
    home.fails(10, &["status", "--wait-clean", "--timeout", "1m"]);
    wait_for_verdict(&mut page, "Stopped");
    let latched = home.status()["daemons"][0]["volumes"][0]["latched"].as_str().expect("told").to_owned();
    assert_eq!(text(&mut page, ".verdict .detail"), latched);
    assert!(text(&mut page, ".notices").contains("Nothing is served any more."));
    assert_accessible(&mut page, "with a stopped volume");
    writer.stop();
}

/// Several volumes have a list, worst first, and a selector. What comes from outside is text and never markup, as the path of a store here.
/// The choice is kept in the address, so that who opens it sees the same. A snapshot beside them is read-only, and says so.
#[test]
fn volumes_are_told_apart() {
    let odd = "<img src=x onerror=window.isTricked=1>\"'&";
    let home = Home::new();
    fs::create_dir(home.path(odd)).expect("made");
    let other = format!("./{odd}/other");
    let (daemon, _) = start(&home, "127.0.0.1:0", &["./tank", &other, "--create", "64M"]);
    home.ok(&["snapshot", "./tank@kept"]);
    daemon.stop();
    let (daemon, url) = start(&home, "127.0.0.1:0", &["./tank", &other, "./tank@kept"]);
    daemon.fill(1, 0, MIB);
    let mut page = open(&url, Looks::LIGHT);
    wait_for(&mut page, "document.querySelector('summary').textContent.startsWith('3 volumes: ')");
    eval(&mut page, "document.querySelector('details').open = true");
    let rows = "[...document.querySelectorAll('details tbody th')].map((head) => head.textContent)";
    wait_for(&mut page, &format!("{rows}.length === 3 && {rows}[0] === 'tank'"));
    eval(
        &mut page,
        "[...document.querySelectorAll('details button')].find(({ textContent }) => textContent === 'other').click()",
    );
    let is_other = "document.querySelector('#chosen-name').textContent === 'other'";
    wait_for(&mut page, is_other);
    wait_for_verdict(&mut page, "Safe to disconnect");
    let shown = home.status();
    let volumes = shown["daemons"][0]["volumes"].as_array().expect("a list");
    let other = volumes.iter().find(|volume| volume["name"] == "other").expect("served");
    assert!(text(&mut page, ".volume-facts").contains(other["url"].as_str().expect("an address")));
    assert_eq!(
        eval(&mut page, "[window.isTricked ?? 0, document.querySelectorAll('img').length]"),
        json!([0, 0])
    );
    let address = eval(&mut page, "location.href");
    page.go("about:blank").expect("the browser answers");
    page.go(address.as_str().expect("an address")).expect("the page is there");
    wait_for(&mut page, is_other);
    let select = "document.querySelector('#volume')";
    eval(&mut page, &format!("{select}.value = 'tank@kept'; {select}.dispatchEvent(new Event('change'))"));
    wait_for(&mut page, "document.querySelector('.verdict').dataset.state === 'reading'");
    assert!(text(&mut page, "#journal").contains("A read-only volume has none of this"));
    assert_eq!(page.complaints().expect("the browser answers"), [""; 0]);
    daemon.stop();
}

/// axe-core finds nothing to complain of, in light and in dark, on a desk and on a phone, with tables, the list of volumes and the histograms
/// open; and on a phone nothing is wider than the screen.
#[test]
fn everybody_can_read_it() {
    let home = Home::new();
    let (daemon, url) = start(&home, "127.0.0.1:0", &["./a", "./b", "--create", "64M"]);
    daemon.fill(1, 0, MIB);
    let mut page = open(&url, Looks::LIGHT);
    wait_for_verdict(&mut page, "Not safe to disconnect");
    for (looks, name) in [
        (Looks::LIGHT, "light"),
        (Looks::DARK, "dark"),
        (Looks::PHONE, "phone"),
        (Looks { dark: true, ..Looks::PHONE }, "dark phone"),
    ] {
        page.look(looks).expect("the browser answers");
        assert_accessible(&mut page, name);
        let width = eval(&mut page, "document.documentElement.scrollWidth").as_u64();
        assert!(width <= Some(looks.width.into()), "{name}: nothing is wider than the screen: {width:?}");
        let turn = "document.querySelectorAll('.panel [aria-pressed]').forEach((button) => button.click())";
        eval(&mut page, &format!("document.querySelector('details').open = true; {turn}"));
        wait_for(
            &mut page,
            "document.querySelector('#snapshots tbody tr') && document.querySelector('details tbody tr')",
        );
        assert_accessible(&mut page, &format!("{name}, tables"));
        eval(&mut page, "document.querySelector('#requests [aria-haspopup]').click()");
        wait_for(&mut page, "document.querySelector('dialog[open] table')");
        assert_accessible(&mut page, &format!("{name}, histograms"));
        eval(
            &mut page,
            &format!(
                "document.querySelector('dialog').close(); document.querySelector('details').open = false; {turn}"
            ),
        );
    }
    assert_quiet(&mut page, &url);
    daemon.stop();
}

/// The keyboard reaches everything: from the skip link to the range, which the arrows change, to the buttons of the panels and into the
/// dialog and out of it; and what has the focus is seen.
#[test]
fn the_keyboard_suffices() {
    let home = Home::new();
    let (daemon, url) = start(&home, "127.0.0.1:0", &["./tank", "--create", "64M"]);
    let mut page = open(&url, Looks::LIGHT);
    let focused = "(({ className, value, textContent, outerHTML }) =>
        [value || textContent || className, outerHTML])(document.activeElement)[0]";
    let press = |page: &mut Page, key: &str| {
        page.press(key).expect("the browser answers");
        eval(page, focused)
    };
    assert_eq!(press(&mut page, "Tab"), json!("Skip to the panels"));
    assert_eq!(press(&mut page, "Tab"), json!("10m"));
    assert_eq!(press(&mut page, "ArrowRight"), json!("2h"));
    wait_for(&mut page, "location.hash.includes('range=2h')");
    assert_eq!(press(&mut page, "Tab"), json!("Table"));
    let outline = "getComputedStyle(document.activeElement).outlineStyle";
    assert_eq!(eval(&mut page, outline), json!("solid"), "the focus is seen");
    press(&mut page, "Enter");
    wait_for(&mut page, "!document.querySelector('#safe .rows').hidden");
    while press(&mut page, "Tab") != json!("Sizes") {
        assert_eq!(
            eval(&mut page, "document.activeElement === document.body"),
            json!(false),
            "it was passed by"
        );
    }
    press(&mut page, "Enter");
    wait_for(&mut page, "document.querySelector('dialog').open");
    press(&mut page, "Escape");
    wait_for(&mut page, "!document.querySelector('dialog').open");
    assert_eq!(eval(&mut page, focused), json!("Sizes"), "the focus is where it was");
    daemon.stop();
}

/// Quantities are written as the command line writes them.
#[test]
fn quantities_are_those_of_the_command_line() {
    let home = Home::new();
    let (daemon, url) = start(&home, "127.0.0.1:0", &["./tank", "--create", "64M"]);
    let mut page = open(&url, Looks::LIGHT);
    let format = |page: &mut Page, call: &str| {
        let written = eval(page, &format!("import('./assets/format.js').then((format) => format.{call})"));
        written.as_str().expect("a text").to_owned()
    };
    for bytes in [0, 1, 1023, 1024, 1280, 1536, 1792, 11 << 8, 5 << 20, (3 << 30) + 1, 90 << 40, 1 << 50] {
        assert_eq!(format(&mut page, &format!("bytes({bytes})")), ByteSize(bytes).to_string());
    }
    for ms in [0, 1, 999, 1000, 1150, 1250, 1500, 61_000, 3_600_000, 5_400_000, 100_000_000] {
        let span = Span(Duration::from_millis(ms)).to_string();
        assert_eq!(format(&mut page, &format!("span({ms})")), span);
    }
    for amount in [0.0, 0.0000123, 0.5, 1.0, 1.125, 12.345, 1234.5] {
        assert_eq!(format(&mut page, &format!("money({amount})")), money(amount));
    }
    for count in [0, 999, 1000, 1_234_567] {
        assert_eq!(format(&mut page, &format!("count({count})")), Thousands(count).to_string());
    }
    for unknown in
        ["bytes(null)", "span(undefined)", "money(NaN)", "count(null)", "latency(null)", "perSecond(null)"]
    {
        assert_eq!(format(&mut page, unknown), "–");
    }
    daemon.stop();
}
