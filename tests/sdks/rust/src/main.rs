//! The Rust SDK behind the words and lines of tests/sdks/README.md. It has no push consumer and no change of the
//! invisible time, no recall and no priorities, but batches: `produce` sends messages whose prefix begins with `batch` in
//! one request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{Message, MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use tokio::io::AsyncReadExt;

static ENDED: AtomicBool = AtomicBool::new(false);

fn say(words: &[&str]) {
    let words: Vec<String> = words.iter().map(|word| word.replace(['\n', '\t'], " ")).collect();
    println!("{}", words.join("\t"));
}

/// Tells why the client could not start, and ends: reading standard input would keep the runtime from ending.
fn give_up(error: impl std::fmt::Display) -> ! {
    say(&["error", &error.to_string()]);
    std::process::exit(1);
}

fn ended() -> bool {
    ENDED.load(Ordering::Relaxed)
}

fn builder(topic: &str, prefix: &str, n: usize) -> MessageBuilder {
    MessageBuilder::builder()
        .set_topic(topic)
        .set_body(format!("{prefix}-{n}").into_bytes())
        .set_tag(if n % 2 == 0 { "a" } else { "b" })
        .set_keys(vec![format!("key-{n}"), prefix.to_string()])
        .set_properties([("own", format!("value-{n}")), ("n", n.to_string())].into())
}

fn message(topic: &str, prefix: &str, n: usize) -> impl Message {
    builder(topic, prefix, n).build().unwrap()
}

/// Tells what became of a message that was sent.
fn sent<T>(body: &str, started: Instant, result: Result<T, ClientError>, id: impl Fn(&T) -> &str) -> Option<T> {
    match result {
        Ok(receipt) => {
            say(&["sent", body, id(&receipt), &started.elapsed().as_millis().to_string()]);
            Some(receipt)
        }
        Err(error) => {
            say(&["failed", body, &error.to_string()]);
            None
        }
    }
}

/// Sends messages of a message group, or with a delivery time.
async fn special(kind: &str, client: ClientOption, topic: &str, prefix: &str, count: usize, entries: &str) {
    let mut option = ProducerOption::default();
    option.set_topics(vec![topic]);
    let mut producer = Producer::new(option, client).unwrap_or_else(|error| give_up(error));
    if let Err(error) = producer.start().await {
        give_up(error);
    }
    say(&["ready"]);
    let entries: Vec<&str> = entries.split(',').collect();
    for n in 0..count {
        let entry = entries[n % entries.len()];
        let started = Instant::now();
        let message = if kind == "fifo" {
            builder(topic, prefix, n).set_message_group(entry)
        } else {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let due = now + Duration::from_millis(entry.parse().unwrap()); // it takes seconds
            builder(topic, prefix, n).set_delivery_timestamp(due.as_secs_f64().ceil() as i64)
        };
        let result = producer.send(message.build().unwrap()).await;
        sent(&format!("{prefix}-{n}"), started, result, |receipt| receipt.message_id());
    }
    if let Err(error) = producer.shutdown().await {
        say(&["error", &error.to_string()]);
    }
}

async fn transact(client: ClientOption, topic: &str, prefix: &str, count: usize, ends: &str, answer: &str) {
    let mut option = ProducerOption::default();
    option.set_topics(vec![topic]);
    let answer = answer.to_string();
    let checker = move |_: String, message: MessageView| {
        say(&["checked", &String::from_utf8_lossy(message.body()), &answer]);
        match answer.as_str() {
            "commit" => TransactionResolution::COMMIT,
            "rollback" => TransactionResolution::ROLLBACK,
            _ => TransactionResolution::UNKNOWN,
        }
    };
    let made = Producer::new_transaction_producer(option, client, Box::new(checker));
    let mut producer = made.unwrap_or_else(|error| give_up(error));
    if let Err(error) = producer.start().await {
        give_up(error);
    }
    say(&["ready"]);
    let ends: Vec<&str> = ends.split(',').collect();
    for n in 0..count {
        let body = format!("{prefix}-{n}");
        let end = ends[n % ends.len()];
        let started = Instant::now();
        let message = builder(topic, prefix, n).enable_transaction().build().unwrap();
        let result = producer.send_transaction_message(message).await;
        let Some(transaction) = sent(&body, started, result, |each| each.message_id()) else { continue };
        let done = match end {
            "commit" => transaction.commit().await,
            "rollback" => transaction.rollback().await,
            _ => continue,
        };
        match done {
            Ok(()) => say(&["ended", &body, end]),
            Err(error) => say(&["failed", &body, &error.to_string()]),
        }
    }
    while !ended() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    if let Err(error) = producer.shutdown().await {
        say(&["error", &error.to_string()]);
    }
}

async fn produce(client: ClientOption, topic: &str, prefix: &str, count: usize, pause: u64) {
    let mut option = ProducerOption::default();
    option.set_topics(vec![topic]);
    let mut producer = Producer::new(option, client).unwrap_or_else(|error| give_up(error));
    if let Err(error) = producer.start().await {
        give_up(error);
    }
    say(&["ready"]);
    let step = if prefix.starts_with("batch") { count } else { 1 };
    let mut n = 0;
    while n < count || (count == 0 && !ended()) {
        let started = Instant::now();
        let sent = producer.batch_send((n..n + step).map(|n| message(topic, prefix, n)).collect()).await;
        let took = started.elapsed().as_millis().to_string();
        for i in 0..step {
            let body = format!("{prefix}-{}", n + i);
            match &sent {
                Ok(receipts) => say(&["sent", &body, receipts[i].message_id(), &took]),
                Err(error) => say(&["failed", &body, &error.to_string()]),
            }
        }
        n += step;
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    if let Err(error) = producer.shutdown().await {
        say(&["error", &error.to_string()]);
    }
}

async fn simple(client: ClientOption, topic: &str, group: &str, expression: &str) {
    let mut option = SimpleConsumerOption::default();
    option.set_topics(vec![topic]);
    option.set_consumer_group(group);
    let mut consumer = SimpleConsumer::new(option, client).unwrap_or_else(|error| give_up(error));
    if let Err(error) = consumer.start().await {
        give_up(error);
    }
    say(&["ready"]);
    let filter = match expression.strip_prefix("sql:") {
        Some(sql) => FilterExpression::new(FilterType::Sql, sql),
        None => FilterExpression::new(FilterType::Tag, expression),
    };
    while !ended() {
        let received = consumer.receive_with(topic, &filter, 32, Duration::from_secs(15)).await;
        match received {
            Ok(messages) => {
                for message in messages {
                    let body = String::from_utf8_lossy(message.body()).to_string();
                    let mut keys = message.keys().to_vec();
                    keys.sort();
                    let attempt = message.delivery_attempt().to_string();
                    let own = message.properties().get("own").cloned().unwrap_or_default();
                    let tag = message.tag().unwrap_or("");
                    let group = message.message_group().unwrap_or("");
                    let due = message.delivery_timestamp().map_or(String::new(), |seconds| format!("{seconds}000"));
                    if !group.is_empty() || !due.is_empty() {
                        say(&["also", &body, group, &due, ""]);
                    }
                    say(&["got", &body, message.message_id(), &attempt, tag, &keys.join(","), &own]);
                    match consumer.ack(&message).await {
                        Ok(()) => say(&["acked", &body]),
                        Err(error) => say(&["error", &error.to_string()]),
                    }
                }
            }
            Err(error) => {
                say(&["error", &error.to_string()]);
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
    if let Err(error) = consumer.shutdown().await {
        say(&["error", &error.to_string()]);
    }
}

#[tokio::main]
async fn main() {
    tokio::spawn(async {
        let mut rest = Vec::new();
        let _ = tokio::io::stdin().read_to_end(&mut rest).await;
        ENDED.store(true, Ordering::Relaxed);
    });
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut client = ClientOption::default();
    client.set_access_url(&words[1]);
    client.set_long_polling_timeout(Duration::from_secs(5));
    match words[0].as_str() {
        "produce" => produce(client, &words[2], &words[3], words[4].parse().unwrap(), words[5].parse().unwrap()).await,
        "simple" => simple(client, &words[2], &words[3], &words[4]).await,
        kind @ ("fifo" | "delay") => {
            special(kind, client, &words[2], &words[3], words[4].parse().unwrap(), &words[5]).await
        }
        "transact" => transact(client, &words[2], &words[3], words[4].parse().unwrap(), &words[5], &words[6]).await,
        other => say(&["error", &format!("this SDK has no {other}")]),
    }
    say(&["done"]);
    std::process::exit(0);
}
