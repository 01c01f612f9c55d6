// The Node.js SDK behind the words and lines of tests/sdks/README.md.
'use strict';

const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const [role, endpoint, topic, name, ...rest] = process.argv.slice(2);
const quiet = { info() {}, warn() {}, debug() {}, error: (...words) => console.error(...words) };
const common = { endpoints: endpoint, namespace: '', logger: quiet };
const say = (...words) => process.stdout.write(words.join('\t').replaceAll('\n', ' ') + '\n');
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

// An error with its causes: the server's own words are in the last one.
const told = error => (error?.cause ? `${error} <- ${told(error.cause)}` : String(error));

let ended = false;
const end = new Promise(resolve => {
  process.stdin.on('end', () => { ended = true; resolve(); });
  process.stdin.resume();
});

function got(message) {
  const body = message.body.toString();
  const keys = [...message.keys].sort().join(',');
  const due = message.deliveryTimestamp?.getTime();
  if (message.messageGroup || due || message.priority !== undefined) {
    say('also', body, message.messageGroup ?? '', due ?? '', message.priority ?? '');
  }
  say('got', body, message.messageId, message.deliveryAttempt, message.tag ?? '', keys, message.properties.get('own') ?? '');
  return body;
}

// Sends message number n, and returns whether it was taken.
async function send(producer, n, more, transaction) {
  const body = `${name}-${n}`;
  const started = performance.now();
  try {
    const receipt = await producer.send({
      topic, tag: n % 2 ? 'b' : 'a', keys: [`key-${n}`, name], body: Buffer.from(body),
      properties: new Map([['own', `value-${n}`], ['n', `${n}`]]), ...more,
    }, transaction);
    if (receipt.recallHandle) say('handle', body, receipt.recallHandle);
    say('sent', body, receipt.messageId, Math.round(performance.now() - started));
    return true;
  } catch (error) {
    say('failed', body, told(error));
    return false;
  }
}

async function produce() {
  const [count, pause] = rest.map(Number);
  const producer = new Producer({ ...common, topic });
  await producer.startup();
  say('ready');
  for (let n = 0; count ? n < count : !ended; n++) {
    await send(producer, n, {});
    if (pause) await sleep(pause);
  }
  await producer.shutdown();
}

async function special() {
  const make = {
    fifo: entry => ({ messageGroup: entry }),
    delay: entry => ({ deliveryTimestamp: new Date(Date.now() + Number(entry)) }),
    priority: entry => ({ priority: Number(entry) }),
  }[role];
  const entries = rest[1].split(',');
  const producer = new Producer({ ...common, topic });
  await producer.startup();
  say('ready');
  for (let n = 0; n < Number(rest[0]); n++) await send(producer, n, make(entries[n % entries.length]));
  await producer.shutdown();
}

async function transact() {
  const ends = rest[1].split(',');
  const answers = {
    commit: TransactionResolution.COMMIT,
    rollback: TransactionResolution.ROLLBACK,
    unknown: TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
  };
  const checker = {
    async check(message) {
      say('checked', message.body.toString(), rest[2]);
      return answers[rest[2]];
    },
  };
  const producer = new Producer({ ...common, topic, checker });
  await producer.startup();
  say('ready');
  for (let n = 0; n < Number(rest[0]); n++) {
    const transaction = producer.beginTransaction();
    const how = ends[n % ends.length];
    if (!await send(producer, n, {}, transaction) || how === 'leave') continue;
    try {
      await (how === 'commit' ? transaction.commit() : transaction.rollback());
      say('ended', `${name}-${n}`, how);
    } catch (error) {
      say('failed', `${name}-${n}`, told(error));
    }
  }
  await end;
  await producer.shutdown();
}

async function recall() {
  const producer = new Producer({ ...common, topic });
  await producer.startup();
  say('ready');
  for (const handle of name.split(',')) {
    try {
      say('recalled', handle, (await producer.recallMessage(topic, handle)).messageId);
    } catch (error) {
      say('failed', handle, told(error));
    }
  }
  await producer.shutdown();
}

const filter = text => (text.startsWith('sql:') ? new FilterExpression(text.slice(4), FilterType.SQL) : text);

async function simple() {
  const consumer = new SimpleConsumer({
    ...common, consumerGroup: name, subscriptions: new Map([[topic, filter(rest[0])]]), awaitDuration: 5000,
  });
  await consumer.startup();
  say('ready');
  const put = new Set();
  while (!ended) {
    try {
      for (const message of await consumer.receive(32, 15000)) {
        const body = got(message);
        if (body.startsWith('later') && !put.has(body)) {
          put.add(body);
          await consumer.changeInvisibleDuration(message, 10000);
          say('later', body);
        } else {
          await consumer.ack(message);
          say('acked', body);
        }
      }
    } catch (error) {
      say('error', told(error));
      await sleep(200);
    }
  }
  await consumer.shutdown();
}

async function push() {
  const failed = new Set();
  const consumer = new PushConsumer({
    ...common, consumerGroup: name, subscriptions: new Map([[topic, filter(rest[0])]]),
    messageListener: {
      async consume(message) {
        const body = got(message);
        if (body.startsWith('dead')) return ConsumeResult.FAILURE;
        if (!body.startsWith('fail') || failed.has(body)) return ConsumeResult.SUCCESS;
        failed.add(body);
        return ConsumeResult.FAILURE;
      },
    },
  });
  await consumer.startup();
  say('ready');
  await end;
  await consumer.shutdown();
}

({ produce, fifo: special, delay: special, priority: special, transact, recall, simple, push })[role]().then(
  () => { say('done'); process.exit(0); },
  error => { say('error', told(error)); process.exit(1); },
);
