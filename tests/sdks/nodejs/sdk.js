// The Node.js SDK behind the words and lines of tests/sdks/README.md.
'use strict';

const { ConsumeResult, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');

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
  say('got', body, message.messageId, message.deliveryAttempt, message.tag ?? '', keys, message.properties.get('own') ?? '');
  return body;
}

async function produce() {
  const [count, pause] = rest.map(Number);
  const producer = new Producer({ ...common, topic });
  await producer.startup();
  say('ready');
  for (let n = 0; count ? n < count : !ended; n++) {
    const body = `${name}-${n}`;
    const started = performance.now();
    try {
      const receipt = await producer.send({
        topic, tag: n % 2 ? 'b' : 'a', keys: [`key-${n}`, name], body: Buffer.from(body),
        properties: new Map([['own', `value-${n}`]]),
      });
      say('sent', body, receipt.messageId, Math.round(performance.now() - started));
    } catch (error) {
      say('failed', body, told(error));
    }
    if (pause) await sleep(pause);
  }
  await producer.shutdown();
}

async function simple() {
  const consumer = new SimpleConsumer({
    ...common, consumerGroup: name, subscriptions: new Map([[topic, rest[0]]]), awaitDuration: 5000,
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
    ...common, consumerGroup: name, subscriptions: new Map([[topic, rest[0]]]),
    messageListener: {
      async consume(message) {
        const body = got(message);
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

({ produce, simple, push })[role]().then(
  () => { say('done'); process.exit(0); },
  error => { say('error', told(error)); process.exit(1); },
);
