import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What producers do. */
final class Sends {
    static void register() {
        Scenarios.ALL.put("send_sync", Sends::sync);
        Scenarios.ALL.put("send_to_new_topic", Sends::toNewTopic);
        Scenarios.ALL.put("send_async", Sends::async);
        Scenarios.ALL.put("send_oneway", Sends::oneway);
        Scenarios.ALL.put("send_batch", Sends::batch);
        if (Version.BATCHES) {
            Scenarios.ALL.put("send_batched_by_client", Sends::batchedByClient);
        }
        Scenarios.ALL.put("send_selected", Sends::selected);
        Scenarios.ALL.put("send_refused", Sends::refused);
        Scenarios.ALL.put("send_delayed", Sends::delayed);
        Scenarios.ALL.put("send_transactions", Sends::transactions);
        Scenarios.ALL.put("send_request", Sends::request);
        Scenarios.ALL.put("send_tls", Sends::tls);
        Scenarios.ALL.put("send_vip", Sends::vip);
        Scenarios.ALL.put("send_traced", Sends::traced);
    }

    private static void sync(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 2);
        List<Object> answers = new ArrayList<>();
        Map<Integer, Long> firsts = new TreeMap<>();
        for (MessageQueue queue : Case.queues(producer, c.topic)) {
            for (int number = 0; number < 3; number++) {
                String body = queue.getBrokerName() + queue.getQueueId() + "-" + number;
                Message message = c.message("TagA", "k1 k" + body, number == 2 ? body + "x".repeat(6000) : body);
                message.putUserProperty("colour", "red");
                message.setFlag(7);
                SendResult result = producer.send(message, queue);
                answers.add(result.getSendStatus() + " " + result.getQueueOffset() + " " + result.getMessageQueue().equals(queue)
                    + " " + result.getRegionId() + " " + result.isTraceOn() + " " + result.getTransactionId()
                    + " " + result.getMsgId().equals(MessageClientIDSetter.getUniqID(message))
                    + " " + MessageDecoder.decodeMessageId(result.getOffsetMsgId()).getAddress().toString().endsWith(address(producer, queue)));
            }
        }
        c.say("answers: status, offset, queue as asked, region, trace, transaction, id of the client, id names the broker", answers);
        List<MessageExt> found = c.read(c.topic, 12);
        List<String> bodies = new ArrayList<>();
        for (MessageExt each : found) {
            bodies.add(Case.body(each).replaceAll("x{6000}", "+6000") + " " + each.getQueueOffset() + " flag " + each.getFlag());
        }
        c.say("stored", bodies);
        MessageExt plain = found.get(0);
        MessageExt large = found.get(2);
        c.say("properties", c.properties(plain));
        c.say("properties, large", c.properties(large));
        c.say("system flags", List.of(plain.getSysFlag(), large.getSysFlag()));
        c.say("hosts", List.of(plain.getBornHostString(),
            plain.getStoreHost().toString().endsWith(address(producer, Case.queues(producer, c.topic).get(0)))));
        c.say("times are in order", plain.getBornTimestamp() <= plain.getStoreTimestamp() + 1000);
        c.say("earlier tries", plain.getReconsumeTimes());
    }

    private static String address(DefaultMQProducer producer, MessageQueue queue) {
        return producer.getDefaultMQProducerImpl().getmQClientFactory().findBrokerAddressInPublish(queue.getBrokerName());
    }

    private static void toNewTopic(Case c) throws Exception {
        DefaultMQProducer producer = c.producer();
        c.say("routed before", Case.outcome(() -> producer.fetchPublishMessageQueues(c.topic).size()));
        MessageQueue queue = producer.send(c.message("A", "k", "first")).getMessageQueue();
        Case.await("the route", () -> Case.outcome(() -> producer.fetchPublishMessageQueues(c.topic).size()) instanceof Integer);
        c.say("queues of the broker", Case.queues(producer, c.topic).stream()
            .filter(each -> each.getBrokerName().equals(queue.getBrokerName())).count());
        c.say("stored", Case.bodies(c.read(c.topic, 1)));
    }

    private static void async(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 2);
        ConcurrentLinkedQueue<String> answers = new ConcurrentLinkedQueue<>();
        CountDownLatch left = new CountDownLatch(20);
        for (int number = 0; number < 20; number++) {
            producer.send(c.message("A", "k" + number, "async" + number), noting(answers, left));
        }
        left.await(Case.WAIT_MS, TimeUnit.MILLISECONDS);
        c.say("answers", Case.sorted(answers));
        c.say("stored", Case.sorted(Case.bodies(c.read(c.topic, 20))));
    }

    private static SendCallback noting(ConcurrentLinkedQueue<String> answers, CountDownLatch left) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                answers.add(result.getSendStatus().toString());
                left.countDown();
            }

            @Override
            public void onException(Throwable error) {
                answers.add(Case.error(error));
                left.countDown();
            }
        };
    }

    private static void oneway(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 2);
        for (int number = 0; number < 20; number++) {
            producer.sendOneway(c.message("A", "k" + number, "oneway" + number));
        }
        c.say("stored", Case.sorted(Case.bodies(c.read(c.topic, 20))));
    }

    private static void batch(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 2);
        List<Message> messages = new ArrayList<>();
        for (int number = 0; number < 5; number++) {
            Message message = c.message("Tag" + number, "k" + number, "batch" + number);
            message.putUserProperty("n", "" + number);
            messages.add(message);
        }
        SendResult result = producer.send(messages);
        c.say("status", result.getSendStatus().toString());
        c.say("offset", result.getQueueOffset());
        c.say("ids", result.getMsgId().split(",").length);
        c.say("ids of the broker", result.getOffsetMsgId().split(",").length);
        List<MessageExt> found = c.read(c.topic, 5);
        c.say("stored in one queue, in order", Case.bodies(found));
        c.say("offsets", offsets(found));
        c.say("properties", c.properties(found.get(4)));
        c.say("by key", Case.outcome(() -> Case.bodies(producer.queryMessage(c.topic, "k3", 10, 0, Long.MAX_VALUE).getMessageList())));
        List<Message> later = List.of(c.message("A", "k", "1"), c.message("A", "k", "2"));
        c.say("again", producer.send(new ArrayList<>(later), result.getMessageQueue()).getQueueOffset());
    }

    private static List<Long> offsets(List<MessageExt> messages) {
        List<Long> found = new ArrayList<>();
        messages.forEach(each -> found.add(each.getQueueOffset()));
        return found;
    }

    private static void batchedByClient(Case c) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(c.group + "_p");
        Version.batch(producer);
        c.started(producer);
        c.made(producer, c.topic, 1);
        ConcurrentLinkedQueue<String> answers = new ConcurrentLinkedQueue<>();
        CountDownLatch left = new CountDownLatch(40);
        for (int number = 0; number < 40; number++) {
            producer.send(new Message(c.topic, ("auto" + number).getBytes()), noting(answers, left));
        }
        left.await(Case.WAIT_MS, TimeUnit.MILLISECONDS);
        c.say("answers", Case.sorted(answers));
        c.say("stored", Case.sorted(Case.bodies(c.read(c.topic, 40))));
    }

    private static void selected(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 4);
        List<MessageQueue> queues = Case.queues(producer, c.topic);
        List<Object> answers = new ArrayList<>();
        for (int number = 0; number < 16; number++) {
            Message message = c.message("A", "k" + number, "order" + number % 4 + "-" + number / 4);
            SendResult result = producer.send(message, (all, given, key) -> queues.get((Integer) key * 2), number % 4);
            answers.add(result.getQueueOffset() + " " + queues.indexOf(result.getMessageQueue()));
        }
        c.say("offset and queue", answers);
        c.say("stored", Case.bodies(c.read(c.topic, 16)));
    }

    private static void refused(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 1);
        producer.setMaxMessageSize(8 << 20);
        producer.setRetryTimesWhenSendFailed(0);
        byte[] random = new byte[5 << 20];
        new Random(1).nextBytes(random); // can't be compressed
        c.say("body of 5 MiB", Case.outcome(() -> producer.send(new Message(c.topic, random)).getSendStatus()));
        Message wide = c.message("A", "k", "wide");
        wide.putUserProperty("wide", "x".repeat(40_000));
        c.say("properties of 40 kB", Case.outcome(() -> producer.send(wide).getSendStatus()));
        MessageQueue beyond = new MessageQueue(c.topic, "broker-a", 99);
        c.say("queue 99", Case.outcome(() -> producer.send(c.message("A", "k", "99"), beyond).getSendStatus()));
        MessageQueue absent = new MessageQueue(c.topic, "broker-x", 0);
        c.say("broker that is not there", Case.outcome(() -> producer.send(c.message("A", "k", "x"), absent).getSendStatus()));
        MessageQueue system = new MessageQueue("SCHEDULE_TOPIC_XXXX", "broker-a", 0);
        c.say("topic of the system", Case.outcome(() -> producer.send(new Message("SCHEDULE_TOPIC_XXXX", new byte[1]), system).getSendStatus()));
        c.say("goes on", producer.send(c.message("A", "k", "last")).getSendStatus().toString());
        c.say("stored", Case.bodies(c.read(c.topic, 1)));
    }

    private static void delayed(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 1);
        Got got = c.collecting(c.push(c.group), "*");
        producer.send(c.message("A", "k", "at once"));
        Case.await("the first", () -> got.has("at once"));
        int[] seconds = {0, 1, 5};
        List<Long> sent = new ArrayList<>();
        for (int level = 2; level >= 0; level--) {
            Message message = c.message("A", "k", "level " + level);
            message.setDelayTimeLevel(level);
            sent.add(0, System.currentTimeMillis());
            c.say("answer " + level, producer.send(message).getSendStatus().toString());
        }
        Case.await("all", () -> got.count() == 4);
        for (int level = 0; level <= 2; level++) {
            long took = got.arrival("level " + level) - sent.get(level);
            c.say("level " + level + " not early", took >= seconds[level] * 1000 - 50); // the broker notes the time a little earlier
            c.say("level " + level + " within 4 s", took < seconds[level] * 1000 + 4000);
        }
        for (MessageExt each : got.all()) {
            c.say("properties of " + Case.body(each), c.properties(each));
        }
    }

    private static void transactions(Case c) throws Exception {
        c.producerOf(c.topic, 1);
        TransactionMQProducer producer = new TransactionMQProducer(c.group + "_t");
        Map<String, Integer> asked = new ConcurrentHashMap<>();
        ConcurrentLinkedQueue<MessageExt> question = new ConcurrentLinkedQueue<>();
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object state) {
                return (LocalTransactionState) state;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String body = Case.body(message);
                boolean first = asked.merge(body, 1, Integer::sum) == 1;
                if (first && body.endsWith("committed")) {
                    question.add(message);
                }
                return body.endsWith("back") ? LocalTransactionState.ROLLBACK_MESSAGE
                    : body.endsWith("twice") && asked.get(body) == 1 ? LocalTransactionState.UNKNOW : LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        c.started(producer);
        Got got = c.collecting(c.push(c.group), "*");
        List<Object> answers = new ArrayList<>();
        answers.add(send(c, producer, "committed", LocalTransactionState.COMMIT_MESSAGE));
        answers.add(send(c, producer, "rolled back", LocalTransactionState.ROLLBACK_MESSAGE));
        answers.add(send(c, producer, "asked, then committed", LocalTransactionState.UNKNOW));
        answers.add(send(c, producer, "asked, then rolled back", LocalTransactionState.UNKNOW));
        answers.add(send(c, producer, "asked twice", LocalTransactionState.UNKNOW));
        c.say("answers", answers);
        Case.await("the last", () -> got.has("asked twice") && got.has("asked, then committed") && asked.size() == 3);
        Case.pass(1000);
        c.say("got", got.bodies());
        c.say("asked", Case.sorted(asked.keySet()));
        MessageExt first = question.peek();
        c.say("properties of a first question", c.properties(first));
        c.say("its topic, and its transaction's id", List.of(first.getTopic().equals(c.topic),
            first.getTransactionId().equals(first.getUserProperty("UNIQ_KEY"))));
        got.all().stream().filter(each -> Case.body(each).equals("committed")).forEach(each -> {
            c.say("properties", c.properties(each));
            c.say("system flag", each.getSysFlag());
        });
    }

    private static String send(Case c, TransactionMQProducer producer, String body, LocalTransactionState state) throws Exception {
        return body + ": " + producer.sendMessageInTransaction(c.message("A", "k", body), state).getSendStatus();
    }

    private static void request(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 1);
        DefaultMQProducer replying = new DefaultMQProducer(c.group + "_q");
        c.started(replying);
        Got got = new Got();
        List<String> replies = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = c.push(c.group);
        consumer.subscribe(c.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            got.add(messages);
            for (MessageExt each : messages) {
                if (each.getProperty("CORRELATION_ID") != null && each.getTags().equals("answer")) {
                    replies.add(String.valueOf(Case.outcome(() ->
                        replying.send(MessageUtil.createReplyMessage(each, ("re: " + Case.body(each)).getBytes())).getSendStatus())));
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        producer.send(c.message("plain", "k", "first"));
        Case.await("the consumer", () -> got.has("first"));
        // Brokers find it by its heartbeat, of which the next may be 30 s away.
        producer.getDefaultMQProducerImpl().getmQClientFactory().sendHeartbeatToAllBrokerWithLock();
        Object reply = asked(producer, c.message("answer", "k", "question"), 10_000);
        c.say("reply", reply instanceof Message ? Case.body((Message) reply) : reply);
        c.say("properties of the reply", reply instanceof Message ? c.properties((Message) reply) : reply);
        c.say("properties of the request", c.properties(got.all().get(1)));
        c.say("nobody answers", asked(producer, c.message("silent", "k", "?"), 1000));
        c.say("what the consumer's sends were answered", replies);
    }

    /** Ask, and return the reply or the error. 5.3.3 says once too often that there is a reply, without one. */
    private static Object asked(DefaultMQProducer producer, Message message, int milliseconds) throws Exception {
        ConcurrentLinkedQueue<Object> said = new ConcurrentLinkedQueue<>();
        producer.request(message, new RequestCallback() {
            @Override
            public void onSuccess(Message reply) {
                if (reply != null) {
                    said.add(reply);
                }
            }

            @Override
            public void onException(Throwable error) {
                said.add(Case.error(error));
            }
        }, milliseconds);
        Case.await("a reply or an error", () -> !said.isEmpty());
        return said.peek();
    }

    private static void tls(Case c) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(c.group + "_s");
        producer.setUseTLS(true);
        c.started(producer);
        c.made(producer, c.topic, 1);
        for (int number = 0; number < 4; number++) {
            producer.send(c.message("A", "k" + number, "tls" + number));
        }
        DefaultMQPushConsumer consumer = c.push(c.group);
        consumer.setUseTLS(true);
        Got got = c.collecting(consumer, "*");
        Case.await("all", () -> got.count() == 4);
        c.say("got", got.bodies());
    }

    private static void vip(Case c) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(c.group + "_v");
        producer.setVipChannelEnabled(true);
        producer.setRetryTimesWhenSendFailed(0);
        c.started(producer);
        c.made(c.producer(), c.topic, 1);
        for (MessageQueue queue : Case.queues(producer, c.topic)) {
            c.say("to " + queue.getBrokerName(), Case.outcome(() -> producer.send(c.message("A", "k", "vip"), queue).getSendStatus()));
            c.say("most of " + queue.getBrokerName(), Case.within(5000, () -> Case.outcome(() -> producer.maxOffset(queue)).equals(1L)));
        }
        c.say("stored", Case.bodies(c.read(c.topic, 2)));
    }

    private static void traced(Case c) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(c.group + "_p", null, true, null);
        c.started(producer);
        c.made(producer, c.topic, 1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(c.group + "_c", null, new AllocateMessageQueueAveragely(), true, null);
        c.ready(consumer);
        Got got = c.collecting(consumer, "*");
        SendResult result = producer.send(c.message("A", "k", "traced"));
        Case.await("the message", () -> got.count() == 1);
        List<String> kinds = new ArrayList<>();
        Case.within(24_000, () -> { // clients send traces every 5 s, later on a busy machine; 5.3.3 tells nothing of what it consumes from 4.9.3
            kinds.clear();
            for (MessageExt each : c.read("RMQ_SYS_TRACE_TOPIC", 1)) {
                for (String record : Case.body(each).split("\u0002")) {
                    if (record.contains(result.getMsgId())) {
                        kinds.add(record.substring(0, record.indexOf(1)) + " keyed by the id: " + each.getKeys().contains(result.getMsgId()));
                    }
                }
            }
            return kinds.size() >= 3;
        });
        c.say("traces", Case.sorted(kinds));
    }
}
