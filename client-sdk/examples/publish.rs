//! Publishes five orders and prints where they are. `cargo run -p quorate-client --example publish [OBSERVER…]`
use std::time::Duration;

use quorate_client::{Client, Record};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let observers = if given.is_empty() { vec!["127.0.0.1:7301".to_owned()] } else { given };
    let client = Client::builder().observers(observers).build().await?;
    let producer = client.producer("orders").build().await?;
    let mut pending = Vec::new();
    for n in 1..=5 {
        let record =
            Record::new(format!("buy {n} pieces")).key("account-7").idempotency_key(format!("example-order-{n}"));
        pending.push(producer.send(record).await?); // admitted; not yet committed
    }
    for outcome in pending {
        let receipt = outcome.await?; // on stable storage on a majority
        let repeat = if receipt.duplicate.is_some() { ", published before" } else { "" };
        println!("{}, {}{repeat}", receipt.partition, receipt.offset.expect("a fresh batch has offsets"));
    }
    println!("{:?}", producer.close(Duration::from_secs(15)).await);
    Ok(())
}
