//! Writes Piper's graph files.

use super::{PiperChoice, PiperInstance};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

impl PiperInstance {
    /// Returns the graph in the format of Piper's planner, as indented JSON with a final line break.
    /// [`PiperInstance::from_json_str`] reads the same instance back.
    #[must_use]
    pub fn to_json_string(&self) -> String {
        let nodes: Vec<Value> = self
            .nodes
            .iter()
            .map(|node| {
                let tables: Map<String, Value> = node
                    .choices
                    .iter()
                    .map(|(t, list)| (t.to_string(), list.iter().map(write_choice).collect()))
                    .collect();
                let mut value = json!({"id": node.id, "TMPCs": tables});
                if let (Some(name), Some(map)) = (&node.name, value.as_object_mut()) {
                    map.insert("name".to_owned(), json!(name));
                }
                value
            })
            .collect();
        let edges: Vec<Value> = self
            .edges
            .iter()
            .map(|edge| json!({"sourceId": edge.source, "destId": edge.destination, "communicationCost": edge.bytes}))
            .collect();
        let whole = json!({
            "maxDevices": self.max_devices,
            "maxMemoryPerDevice": self.max_memory_per_device,
            "bandwidth": self.bandwidth,
            "mbsInBatch": self.micro_batches,
            "nodes": nodes,
            "edges": edges,
        });
        format!("{whole:#}\n")
    }
}

fn write_choice(choice: &PiperChoice) -> Value {
    let sync = |times: &BTreeMap<i64, f64>| {
        times.iter().map(|(id, bytes)| (id.to_string(), json!(bytes))).collect::<Map<_, _>>()
    };
    json!({
        "id": choice.id,
        "timePerSample": choice.time_per_sample,
        "parameterSize": choice.parameter_bytes,
        "memoryUsageA": choice.memory_a,
        "memoryUsageB": choice.memory_b,
        "syncTimeFw": sync(&choice.sync_forward),
        "syncTimeBw": sync(&choice.sync_backward),
    })
}
