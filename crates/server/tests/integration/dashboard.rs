//! packaging/grafana-dashboard.json queries metrics that the server exposes, and shows all important ones.

use std::collections::BTreeSet;

use crate::common::Fixture;
use serde_json::Value;

const DASHBOARD: &str = include_str!("../../../../packaging/grafana-dashboard.json");

/// Source of the machine gauges, which `indrik serve` defines and this crate does not.
const MACHINE_GAUGES: &str = include_str!("../../../cli/src/commands/serve/gauges.rs");

/// Metrics that the dashboard must show.
const IMPORTANT: [&str; 18] = [
    "requests_prefilling",
    "requests_decoding",
    "requests_running",
    "requests_waiting",
    "prompt_tokens_total",
    "generation_tokens_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_latency_seconds",
    "kv_cache_usage_ratio",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "preemptions_total",
    "http_requests_total",
    "engine_requests_total",
    "device_lost_total",
    "memory_bandwidth_bytes_per_second",
    "memory_bandwidth_utilization_ratio",
];

/// Names of metrics in a query, without the prefix and a histogram's suffix.
fn metrics(query: &str) -> impl Iterator<Item = &str> {
    query.split("indrik_").skip(1).map(|rest| {
        let end = rest.find(|c: char| !(c.is_ascii_lowercase() || c == '_')).unwrap_or(rest.len());
        let name = &rest[..end];
        name.strip_suffix("_bucket").unwrap_or(name)
    })
}

#[test]
fn the_dashboard_queries_exposed_metrics_and_shows_the_important_ones() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let text = Fixture::new().get("/metrics").body;
    let types: BTreeSet<(&str, &str)> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE indrik_")?.split_once(' ')).collect();
    let exposed: BTreeSet<&str> = types.iter().map(|(name, _)| *name).collect();

    let mut queried = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().unwrap();
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title}");
        for target in targets {
            let query = target["expr"].as_str().unwrap();
            assert_eq!(query.matches('(').count(), query.matches(')').count(), "{title}: {query}");
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            for name in metrics(query) {
                let machine = MACHINE_GAUGES.contains(&format!("\"{name}\""));
                assert!(exposed.contains(name) || machine, "{title}: indrik_{name} is not exposed");
                // A counter without a rate, or the rate of a gauge, shows nothing useful.
                let counter = types.contains(&(name, "counter")) || types.contains(&(name, "histogram"));
                let rates = query.contains(&format!("rate(indrik_{name}"))
                    || query.contains(&format!("increase(indrik_{name}"));
                assert_eq!(rates, counter, "{title}: {query}");
                queried.insert(name.to_owned());
            }
        }
    }
    for name in IMPORTANT {
        assert!(queried.contains(name), "no panel shows indrik_{name}");
    }
    for quantile in ["0.5", "0.95", "0.99"] {
        for histogram in ["time_to_first_token_seconds", "inter_token_latency_seconds"] {
            let query = format!("histogram_quantile({quantile}, sum by (le) (rate(indrik_{histogram}_bucket");
            assert!(DASHBOARD.contains(&query), "no {query}");
        }
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert!(
        variables
            .iter()
            .any(|variable| variable["type"] == "datasource" && variable["query"] == "prometheus")
    );
    let ids: BTreeSet<u64> =
        dashboard["panels"].as_array().unwrap().iter().map(|p| p["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), dashboard["panels"].as_array().unwrap().len(), "panel ids are unique");
}
