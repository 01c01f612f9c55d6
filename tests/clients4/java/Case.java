import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * One scenario under way: its names, its clients, and what it has to say.
 *
 * What is said must not depend on ports, ids, times, or on which of several right ways it went: counts, sets,
 * orders within a queue, codes of errors. So that it can be compared between servers.
 */
final class Case {
    static String nameServer;
    static String run;
    static final int WAIT_MS = 90_000;
    private static final int POLL_MS = 20;

    final String topic;
    final String group;
    final TreeMap<String, Object> said = new TreeMap<>();
    private DefaultMQPullConsumer reader;
    private final AtomicInteger clients = new AtomicInteger();
    private final List<Runnable> ends = Collections.synchronizedList(new ArrayList<>());

    Case(String scenario) {
        topic = "T_" + run + "_" + scenario;
        group = "G_" + run + "_" + scenario;
    }

    void say(String what, Object value) {
        said.put(what, value);
    }

    /** End all clients, the last first. */
    void end() {
        for (int at = ends.size() - 1; at >= 0; at--) {
            ends.get(at).run();
        }
    }

    void atEnd(Runnable end) {
        ends.add(end);
    }

    /** A name that no other client has: two of one process must not share a connection's identity. */
    String instance() {
        return group + "-" + clients.incrementAndGet();
    }

    DefaultMQProducer producer() throws Exception {
        DefaultMQProducer made = new DefaultMQProducer(group + "_p");
        started(made);
        return made;
    }

    void started(DefaultMQProducer made) throws Exception {
        made.setNamesrvAddr(nameServer);
        made.setInstanceName(instance());
        made.setSendMsgTimeout(10_000);
        made.start();
        atEnd(made::shutdown);
    }

    /** Make a topic at both brokers, and wait until it can be routed. */
    DefaultMQProducer producerOf(String topic, int queues) throws Exception {
        DefaultMQProducer made = producer();
        made(made, topic, queues);
        return made;
    }

    void made(DefaultMQProducer producer, String topic, int queues) throws Exception {
        Version.createTopic(producer, topic, queues);
        await("the topic", () -> routed(producer, topic) == 2 * queues);
    }

    private static int routed(DefaultMQProducer producer, String topic) {
        try {
            return producer.fetchPublishMessageQueues(topic).size();
        } catch (MQClientException error) {
            return 0;
        }
    }

    /** A topic's queues, in the order of brokers and numbers. */
    static List<MessageQueue> queues(DefaultMQProducer producer, String topic) throws Exception {
        List<MessageQueue> found = new ArrayList<>(producer.fetchPublishMessageQueues(topic));
        Collections.sort(found);
        return found;
    }

    Message message(String tag, String key, String body) {
        return new Message(topic, tag, key, body.getBytes(StandardCharsets.UTF_8));
    }

    DefaultMQPushConsumer push(String group) {
        DefaultMQPushConsumer made = new DefaultMQPushConsumer(group);
        ready(made);
        return made;
    }

    void ready(DefaultMQPushConsumer made) {
        made.setNamesrvAddr(nameServer);
        made.setInstanceName(instance());
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        atEnd(made::shutdown);
    }

    /** Start a consumer that succeeds with all messages, and return where these are noted. */
    Got collecting(DefaultMQPushConsumer consumer, String expression) throws Exception {
        Got got = new Got();
        consumer.subscribe(topic, expression);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            got.add(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return got;
    }

    /** How many queues of the topic a consumer holds. */
    int held(DefaultMQPushConsumer consumer) {
        int count = 0;
        for (MessageQueue queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            count += queue.getTopic().equals(topic) ? 1 : 0;
        }
        return count;
    }

    DefaultMQPullConsumer pull(String group) throws Exception {
        DefaultMQPullConsumer made = new DefaultMQPullConsumer(group);
        made.setNamesrvAddr(nameServer);
        made.setInstanceName(instance());
        made.start();
        atEnd(made::shutdown);
        return made;
    }

    /** Read all queues of a topic until so many messages were seen; by queue and offset. */
    List<MessageExt> read(String topic, int count) throws Exception {
        DefaultMQPullConsumer consumer = reader();
        Map<MessageQueue, Long> next = new HashMap<>();
        List<MessageExt> found = new ArrayList<>();
        await(count + " messages of " + topic, () -> {
            for (MessageQueue queue : routes(consumer, topic)) {
                PullResult result;
                do {
                    result = consumer.pull(queue, "*", next.getOrDefault(queue, 0L), 32);
                    if (result.getPullStatus() == PullStatus.FOUND) {
                        found.addAll(result.getMsgFoundList());
                    }
                    next.put(queue, result.getNextBeginOffset());
                } while (result.getPullStatus() == PullStatus.FOUND);
            }
            return found.size() >= count;
        });
        found.sort(Comparator.comparing(MessageExt::getBrokerName)
            .thenComparing(MessageExt::getQueueId).thenComparing(MessageExt::getQueueOffset));
        return found;
    }

    /** One pull consumer serves all reading of a scenario. */
    private synchronized DefaultMQPullConsumer reader() throws Exception {
        if (reader == null) {
            reader = pull(group + "_r");
        }
        return reader;
    }

    private static Collection<MessageQueue> routes(DefaultMQPullConsumer consumer, String topic) {
        try {
            return consumer.fetchSubscribeMessageQueues(topic);
        } catch (MQClientException error) {
            return Collections.emptyList();
        }
    }

    /** A group's dead letters, when there is one: by their key, because 4.9.3 lets nobody pull them. */
    List<MessageExt> dead(DefaultMQProducer producer, String key) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        await("a dead letter", () -> {
            Object given = outcome(() -> producer.queryMessage("%DLQ%" + group, key, 10, 0, Long.MAX_VALUE).getMessageList());
            if (given instanceof List) {
                ((List<?>) given).forEach(each -> found.add((MessageExt) each));
            }
            return !found.isEmpty();
        });
        return found;
    }

    /** What a group has committed for the queues of the topic, together; -1 counts for each without. */
    long committed(String group) throws Exception {
        DefaultMQPullConsumer consumer = pull(group);
        long sum = 0;
        for (MessageQueue queue : routes(consumer, topic)) {
            sum += consumer.fetchConsumeOffset(queue, true);
        }
        consumer.shutdown(); // else it is a member that takes its share of the queues
        return sum;
    }

    static String body(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static List<String> bodies(Collection<MessageExt> messages) {
        List<String> found = new ArrayList<>();
        messages.forEach(each -> found.add(body(each)));
        return found;
    }

    static List<String> sorted(Collection<String> texts) {
        List<String> found = new ArrayList<>(texts);
        Collections.sort(found);
        return found;
    }

    /** A message's properties: their names, and the values of those that don't depend on the run. */
    List<String> properties(Message message) {
        List<String> found = new ArrayList<>();
        for (Map.Entry<String, String> each : new TreeMap<>(message.getProperties()).entrySet()) {
            boolean varies = VARYING.contains(each.getKey());
            found.add(each.getKey() + (varies ? "" : "=" + each.getValue().replace(topic, "TOPIC").replace(group, "GROUP")));
        }
        return found;
    }

    private static final TreeSet<String> VARYING = new TreeSet<>(List.of(
        "UNIQ_KEY", "ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "INSTANCE_ID",
        "CONSUME_START_TIME", "MIN_OFFSET", "MAX_OFFSET", "1ST_MSG_TIME", "ARRIVE_TIME", "PUSH_REPLY_TIME",
        "REPLY_MESSAGE_ARRIVE_TIME", "__transactionId__", "TRAN_PREPARED_QUEUE_OFFSET"));

    /** What a call gives, or which error. */
    static Object outcome(Callable<?> call) {
        try {
            return call.call();
        } catch (Exception error) {
            return error(error);
        }
    }

    static String error(Throwable error) {
        if (error instanceof MQBrokerException) {
            return "MQBrokerException " + ((MQBrokerException) error).getResponseCode();
        }
        if (error instanceof MQClientException) {
            int code = ((MQClientException) error).getResponseCode();
            boolean within = code == -1 && error.getCause() != null;
            return within ? error(error.getCause()) : "MQClientException " + code;
        }
        return error.getClass().getSimpleName();
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    /** Wait until something holds, and fail without. */
    static void await(String what, Condition condition) throws Exception {
        if (!within(WAIT_MS, condition)) {
            throw new IllegalStateException("not within " + WAIT_MS / 1000 + " s: " + what);
        }
    }

    /** Wait until something holds, and tell whether it came to that. */
    static boolean within(int milliseconds, Condition condition) throws Exception {
        long end = System.currentTimeMillis() + milliseconds;
        while (!condition.holds()) {
            if (System.currentTimeMillis() > end) {
                return false;
            }
            Thread.sleep(POLL_MS);
        }
        return true;
    }

    /** Let a time pass in which something must not happen. */
    static void pass(int milliseconds) throws InterruptedException {
        Thread.sleep(milliseconds);
    }
}
