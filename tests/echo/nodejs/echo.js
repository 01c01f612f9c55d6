// The cases of ../README.md with grpc-js.
'use strict';
const grpc = require('@grpc/grpc-js');

const same = (bytes) => bytes;
const method = (name, requestStream, responseStream) => ({
  path: `/whimbrel.test.Echo/${name}`, requestStream, responseStream,
  requestSerialize: same, requestDeserialize: same, responseSerialize: same, responseDeserialize: same,
});
const Echo = grpc.makeGenericClientConstructor({
  Unary: method('Unary', false, false), Fail: method('Fail', false, false), Never: method('Never', false, false),
  Listed: method('Listed', false, true), Pulled: method('Pulled', false, true),
  Gather: method('Gather', true, false), Both: method('Both', true, true),
}, 'Echo');

const client = new Echo(process.argv[2], grpc.credentials.createInsecure());
const soon = (ms = 30000) => ({ deadline: Date.now() + ms });

function body(size) {
  const data = Buffer.alloc(size);
  for (let i = 0; i < size; i++) data[i] = (i * 31 + Math.floor(i / 256)) & 255;
  return data;
}

function hold(name, truth, what) {
  if (!truth) {
    console.error(`${name}: ${what}`);
    process.exit(1);
  }
  console.log(name);
}

function unary(name, data, metadata, options, begun) {
  return new Promise((resolve) => {
    let trailers;
    const call = client[name](data, metadata || new grpc.Metadata(), options || soon(),
      (error, answer) => setImmediate(() => resolve({ error, answer, trailers })));
    call.on('status', (status) => { trailers = status.metadata; });
    if (begun) begun(call);
  });
}

function listen(call) {
  const got = [];
  return new Promise((resolve) => {
    let error;
    call.on('data', (data) => got.push(data));
    call.on('error', (one) => { error = one; });
    call.on('status', (status) => setImmediate(() => resolve({ got, error, status })));
  });
}

async function main() {
  for (const word of process.argv.slice(4)) {
    const want = body(Number(word));
    const { error, answer } = await unary('Unary', want);
    hold(`unary ${word}`, !error && want.equals(answer), error);
    for (const name of ['Listed', 'Pulled']) {
      const { got, error } = await listen(client[name](want, new grpc.Metadata(), soon()));
      hold(`${name.toLowerCase()} ${word}`, !error && got.length === 3 && got.every((one) => want.equals(one)), error);
    }
    const gathered = await new Promise((resolve) => {
      const result = {};
      const call = client.Gather(new grpc.Metadata(), soon(), (error, answer) => {
        Object.assign(result, { error, answer });
        setImmediate(() => resolve(result));
      });
      call.on('status', (status) => { result.count = status.metadata.get('x-count'); });
      for (let i = 0; i < 3; i++) call.write(want);
      call.end();
    });
    hold(`client ${word}`, !gathered.error && want.equals(gathered.answer) && gathered.count[0] === '3',
      `${gathered.error} ${gathered.count}`);
    const call = client.Both(new grpc.Metadata(), soon());
    let back = 0;
    const listening = listen(call);
    call.on('data', () => { if (++back < 3) call.write(want); else call.end(); });
    call.write(want);
    const ended = await listening;
    hold(`both ${word}`, !ended.error && ended.got.length === 3 && ended.got.every((one) => want.equals(one)), ended.error);
  }

  const want = body(10);
  const failed = await unary('Fail', want);
  hold('status', failed.error && failed.error.code === grpc.status.NOT_FOUND
    && failed.error.details === 'no such thing: 100 % ümlaut & "quotes"'
    && failed.error.metadata.get('x-reason')[0] === 'none', failed.error);

  const sent = new grpc.Metadata();
  sent.set('x-echo', 'hello');
  sent.set('x-echo-bin', Buffer.from([0, 255, 128]));
  const told = await unary('Unary', want, sent);
  hold('metadata', !told.error && told.trailers.get('x-echo')[0] === 'hello'
    && Buffer.from([0, 255, 128]).equals(told.trailers.get('x-echo-bin')[0]), told.error);

  const many = await Promise.all(Array.from({ length: Number(process.argv[3]) }, async (_, i) => {
    const { error, answer } = await unary('Unary', body(i));
    return !error && body(i).equals(answer);
  }));
  hold('many', many.every(Boolean), many);

  const late = await unary('Never', want, undefined, soon(200));
  hold('deadline', late.error && late.error.code === grpc.status.DEADLINE_EXCEEDED, late.error);

  const stopped = await unary('Never', want, undefined, undefined, (call) => setTimeout(() => call.cancel(), 100));
  const call = client.Both(new grpc.Metadata(), soon());
  const listening = listen(call);
  call.on('data', () => call.cancel());
  call.write(want);
  const ended = await listening;
  hold('cancel', stopped.error && stopped.error.code === grpc.status.CANCELLED && ended.got.length === 1
    && ended.status.code === grpc.status.CANCELLED, `${stopped.error} ${ended.error}`);
  client.close();
}

main();
