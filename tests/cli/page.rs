//! `coplace page` from the outside: its addresses, its answers, and the page in a browser.

use crate::support::{browse_page, run_coplace};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// The job of these tests.
const JOB: [&str; 9] =
    ["llama3-8b", "--chip", "h100", "--fabric", "nvlink4_node", "--devices", "8", "--global-batch", "64"];

/// A page that is served until this is dropped.
struct Served {
    program: Child,
    host: String,
    token: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.program.kill().unwrap();
        self.program.wait().unwrap();
    }
}

impl Served {
    fn start() -> Self {
        let mut program = Command::new(assert_cmd::cargo::cargo_bin!("coplace"))
            .arg("page")
            .args(JOB)
            .env("COPLACE_LOG", "off")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = String::new();
        BufReader::new(program.stdout.take().unwrap()).read_line(&mut address).unwrap();
        let (host, token) = address.trim().strip_prefix("http://").unwrap().split_once('/').unwrap();
        assert!(host.starts_with("127.0.0.1:") && token.len() == 33, "{address}");
        Self { host: host.to_owned(), token: token.trim_end_matches('/').to_owned(), program }
    }

    /// Sends a request, and returns the status and the body of the answer.
    fn request(&self, method: &str, path: &str, host: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: {host}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn answer(&self, settings: &Value) -> Value {
        let path = format!("/{}/answer", self.token);
        let (status, body) = self.request("POST", &path, &self.host, &settings.to_string());
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap_or_else(|why| panic!("{why}: {body}"))
    }
}

/// Returns the position of a value on a slider.
fn place(start: &Value, key: &str, value: &str) -> usize {
    let controls = start["controls"].as_array().unwrap();
    let control = controls.iter().find(|control| control["key"] == key).unwrap_or_else(|| panic!("no {key}"));
    let values = control["values"].as_array().unwrap();
    values.iter().position(|known| known == value).unwrap_or_else(|| panic!("{key} {value}: {values:?}"))
}

/// Returns the data of the page: its sliders and its first answer.
fn start(served: &Served) -> Value {
    let (status, page) = served.request("GET", &format!("/{}/", served.token), &served.host, "");
    assert_eq!(status, 200);
    let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    serde_json::from_str(data).unwrap()
}

#[test]
fn sliders_ask_the_core_again_and_strangers_are_refused() {
    let served = Served::start();
    let own = format!("/{}/", served.token);
    for (path, host) in [
        ("/", &*served.host),
        ("/00000000000000000000000000000000/", &served.host),
        (&own, "example.org"),
        (&format!("{own}other"), &served.host),
    ] {
        assert_eq!(served.request("GET", path, host, "").0, 404, "{path} {host}");
    }
    let start = start(&served);
    let first = &start["first"];
    // The page has the same plan as `evaluate`.
    let words = ["evaluate"].iter().chain(&JOB).chain(&["--format", "json"]).copied().collect::<Vec<_>>();
    let evaluated = run_coplace(&words).expect_json();
    assert_eq!(first["plan"], evaluated["result"]["plan"]);
    assert_eq!(served.answer(&json!({}))["plan"]["step_s"], first["plan"]["step_s"]);

    let step = |answer: &Value| answer["plan"]["step_s"].as_f64().unwrap_or_else(|| panic!("{answer}"));
    let key = "memory.hbm.read_gb_per_s";
    let faster = served.answer(&json!({ key: place(&start, key, "6700") }));
    let slower = served.answer(&json!({ key: place(&start, key, "1675") }));
    assert!(step(&faster) < step(first) && step(first) < step(&slower));
    assert_eq!(faster["job"]["chip"]["hbm_gb_per_s"], 6700.0);
    let recomputed = served.answer(&json!({ "recompute": place(&start, "recompute", "full") }));
    let peak = |answer: &Value| answer["plan"]["peak_gib"].as_f64().unwrap();
    assert!(step(&recomputed) > step(first) && peak(&recomputed) < peak(first));

    // An impossible setting is refused with its cure.
    let wrong = served.answer(&json!({ "tensor": place(&start, "tensor", "64") }));
    assert!(wrong["error"].as_str().unwrap().contains("--tensor"), "{wrong}");
    let wrong = served.answer(&json!({ "tensor": 99 }));
    assert!(wrong["error"].as_str().unwrap().contains("is no place of the slider"), "{wrong}");
    let small = served.answer(&json!({ "memory.hbm.capacity_gib": 0 }));
    assert_eq!(small["feasible"], false);
    assert!(small["why"].as_str().unwrap().contains("GiB"), "{small}");

    // Five of nine answers take less than 0.2 s.
    let mut took: Vec<f64> =
        (0..9).map(|at| served.answer(&json!({ "clock_mhz": at, key: 8 - at }))["took_ms"].as_f64().unwrap()).collect();
    took.sort_by(f64::total_cmp);
    assert!(took[4] < 200.0, "{took:?}");
}

/// `.ci/run` runs this test if Debian's package chromium is installed or can be installed.
#[test]
#[ignore = "needs chromium"]
fn the_sliders_in_a_browser_redraw_every_chart_in_both_themes_and_widths() {
    let served = Served::start();
    let start = start(&served);
    let moved = place(&start, "memory.hbm.read_gb_per_s", "6700");
    for width in [1280, 400] {
        for theme in ["light", "dark"] {
            let hash = format!("{theme},{width},memory.hbm.read_gb_per_s={moved}");
            let (console, dom) = browse_page(&format!("http://{}/{}/#{hash}", served.host, served.token));
            assert_eq!(console, "", "{width} {theme}");
            let root = dom.split_once("<html").unwrap().1.split_once('>').unwrap().0;
            assert!(root.contains(&format!("data-theme=\"{theme}\"")) && !root.contains("data-errors"), "{root}");
            assert!(root.contains("data-overflow=\"false\"") && root.contains("data-ready=\"4\""), "{width}: {root}");
            assert!(root.contains("data-moves=\"1\""), "the slider asked for nothing: {root}");
            for chart in ["step", "memory", "roofline", "comparison"] {
                let after = dom.split_once(&format!("id=\"chart-{chart}\"")).unwrap().1;
                let place = after.split_once("<figcaption").unwrap().0;
                assert!(place.contains("data-drawn=\"true\""), "{width} {theme}: {chart} is not drawn");
                assert!(place.matches("<path").count() > 3, "{width} {theme}: {chart} is empty");
            }
            assert!(dom.contains("6700</b>") && dom.contains("times that of the start"), "{width} {theme}");
            assert!(!dom.contains("Throughput is 1 times"), "nothing has changed");
        }
    }
}
