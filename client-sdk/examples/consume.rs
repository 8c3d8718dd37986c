//! Prints all orders, oldest first, and waits for more. `cargo run -p quorate-client --example consume [OBSERVER…]`
use quorate_client::{Client, StartAt};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let observers = if given.is_empty() { vec!["127.0.0.1:7301".to_owned()] } else { given };
    let client = Client::builder().observers(observers).build().await?;
    let mut orders = client.consumer("orders").from(StartAt::Earliest).build().await?;
    while let Some(order) = orders.next().await {
        let order = order?;
        println!("{}, {}: {}", order.partition, order.offset, String::from_utf8_lossy(&order.value));
    }
    Ok(())
}
