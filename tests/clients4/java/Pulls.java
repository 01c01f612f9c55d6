import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What pull consumers do, and the admin calls of producers. */
final class Pulls {
    private static final int HOUR_MS = 3_600_000;

    static void register() {
        Scenarios.ALL.put("lite_subscribed", Pulls::subscribed);
        Scenarios.ALL.put("lite_assigned", Pulls::assigned);
        Scenarios.ALL.put("pull", Pulls::pull);
        Scenarios.ALL.put("pull_sent_back", Pulls::sentBack);
        Scenarios.ALL.put("admin_offsets", Pulls::offsets);
        Scenarios.ALL.put("admin_messages", Pulls::messages);
    }

    private static void fill(Case c, DefaultMQProducer producer, int each) throws Exception {
        List<MessageQueue> queues = Case.queues(producer, c.topic);
        for (MessageQueue queue : queues) {
            for (int number = 0; number < each; number++) {
                producer.send(c.message(number % 2 == 0 ? "A" : "B", "k" + number, "m" + queues.indexOf(queue) + "-" + number), queue);
            }
        }
    }

    private static DefaultLitePullConsumer lite(Case c) {
        DefaultLitePullConsumer made = new DefaultLitePullConsumer(c.group);
        made.setNamesrvAddr(Case.nameServer);
        made.setInstanceName(c.instance());
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.atEnd(made::shutdown);
        return made;
    }

    private static List<MessageExt> polled(DefaultLitePullConsumer consumer, int count) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        Case.await(count + " messages", () -> {
            found.addAll(consumer.poll(200));
            return found.size() >= count;
        });
        return found;
    }

    private static void subscribed(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 2);
        fill(c, producer, 4);
        DefaultLitePullConsumer consumer = lite(c);
        consumer.subscribe(c.topic, "A");
        consumer.start();
        c.say("got", Case.sorted(Case.bodies(polled(consumer, 8))));
        consumer.commitSync();
        producer.send(c.message("A", "k", "later"));
        c.say("got later", Case.bodies(polled(consumer, 1)));
        c.say("nothing more", consumer.poll(500).size());
    }

    private static void assigned(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 1);
        fill(c, producer, 6);
        DefaultLitePullConsumer consumer = lite(c);
        consumer.setAutoCommit(false);
        consumer.start();
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchMessageQueues(c.topic));
        Collections.sort(queues);
        MessageQueue queue = queues.get(0);
        consumer.assign(queues.subList(0, 1));
        c.say("queues", queues.size());
        c.say("committed before", Case.outcome(() -> consumer.committed(queue)));
        c.say("an hour ago", consumer.offsetForTimestamp(queue, System.currentTimeMillis() - HOUR_MS));
        c.say("in an hour", consumer.offsetForTimestamp(queue, System.currentTimeMillis() + HOUR_MS));
        consumer.seekToBegin(queue);
        c.say("from the begin", Case.bodies(polled(consumer, 6)));
        consumer.seek(queue, 4);
        c.say("from 4", Case.bodies(polled(consumer, 2)));
        consumer.commitSync();
        Case.await("the commit", () -> consumer.committed(queue) == 6);
        c.say("committed", consumer.committed(queue));
        consumer.seekToEnd(queue);
        producer.send(c.message("A", "k", "at the end"), queue);
        c.say("from the end", Case.bodies(polled(consumer, 1)));
        c.say("seek beyond the end", Case.outcome(() -> {
            consumer.seek(queue, 100);
            return "done";
        }));
        consumer.pause(queues.subList(0, 1));
        c.say("paused", consumer.poll(300).size());
    }

    private static void pull(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 1);
        fill(c, producer, 4);
        DefaultMQPullConsumer consumer = c.pull(c.group);
        Set<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(c.topic);
        c.say("queues", queues.size());
        MessageQueue queue = Case.queues(producer, c.topic).get(0);
        c.say("committed before", consumer.fetchConsumeOffset(queue, true));
        TreeMap<String, Object> results = new TreeMap<>();
        Case.await("the last message", () -> consumer.pull(queue, "*", 3, 1).getMsgFoundList() != null);
        results.put("all", told(consumer.pull(queue, "*", 0, 32)));
        results.put("two", told(consumer.pull(queue, "*", 1, 2)));
        results.put("tag B", told(consumer.pull(queue, "B", 0, 32)));
        results.put("tag C", told(consumer.pull(queue, "C", 0, 32)));
        results.put("two tags", told(consumer.pull(queue, "A || B", 0, 32)));
        results.put("at the end", told(consumer.pull(queue, "*", 4, 32)));
        results.put("beyond the end", told(consumer.pull(queue, "*", 100, 32)));
        c.say("pulls: status, next, least, most, bodies", results);
        long began = System.currentTimeMillis();
        Thread sender = new Thread(() -> Case.outcome(() -> {
            Case.pass(500);
            return producer.send(c.message("A", "k", "late"), queue);
        }));
        sender.start();
        c.say("held", told(consumer.pullBlockIfNotFound(queue, "*", 4, 32)));
        c.say("held until it came", System.currentTimeMillis() - began < 5000);
        consumer.updateConsumeOffset(queue, 3);
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
        // 5.3.3 hands a oneway request to another thread: the question may overtake it.
        Case.await("the commit", () -> consumer.fetchConsumeOffset(queue, true) == 3);
        c.say("committed", consumer.fetchConsumeOffset(queue, true));
        MessageQueue absent = new MessageQueue(c.topic, queue.getBrokerName(), 9);
        c.say("queue 9", Case.outcome(() -> told(consumer.pull(absent, "*", 0, 32))));
        MessageQueue unknown = new MessageQueue(c.topic + "_unknown", queue.getBrokerName(), 0);
        c.say("unknown topic", Case.outcome(() -> told(consumer.pull(unknown, "*", 0, 32))));
        c.say("queues of an unknown topic", Case.outcome(() -> consumer.fetchSubscribeMessageQueues(c.topic + "_unknown").size()));
    }

    private static String told(PullResult result) {
        Collection<MessageExt> messages = result.getMsgFoundList() == null ? List.of() : result.getMsgFoundList();
        return result.getPullStatus() + " " + result.getNextBeginOffset() + " " + result.getMinOffset() + " " + result.getMaxOffset()
            + " " + Case.bodies(messages);
    }

    private static void sentBack(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 1);
        MessageQueue queue = Case.queues(producer, c.topic).get(0);
        producer.send(c.message("A", "k", "back"), queue);
        DefaultMQPullConsumer consumer = c.pull(c.group);
        List<MessageExt> found = new ArrayList<>();
        Case.await("the message", () -> {
            PullResult result = consumer.pull(queue, "*", 0, 1);
            found.addAll(result.getMsgFoundList() == null ? List.of() : result.getMsgFoundList());
            return !found.isEmpty();
        });
        c.say("answer", Case.outcome(() -> {
            consumer.sendMessageBack(found.get(0), 1);
            return "taken";
        }));
        List<MessageExt> again = c.read("%RETRY%" + c.group, 1);
        c.say("comes again", Case.bodies(again));
        c.say("earlier tries", again.get(0).getReconsumeTimes());
        c.say("properties", c.properties(again.get(0)));
    }

    private static void offsets(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 1);
        MessageQueue queue = Case.queues(producer, c.topic).get(0);
        TreeMap<String, Object> empty = new TreeMap<>();
        empty.put("least", producer.minOffset(queue));
        empty.put("most", producer.maxOffset(queue));
        empty.put("earliest", Case.outcome(() -> producer.earliestMsgStoreTime(queue)));
        empty.put("an hour ago", Case.outcome(() -> producer.searchOffset(queue, System.currentTimeMillis() - HOUR_MS)));
        c.say("of an empty queue", empty);
        long before = System.currentTimeMillis();
        fill(c, producer, 5);
        Case.await("the queue", () -> producer.maxOffset(queue) == 5);
        TreeMap<String, Object> full = new TreeMap<>();
        full.put("least", producer.minOffset(queue));
        full.put("most", producer.maxOffset(queue));
        long earliest = producer.earliestMsgStoreTime(queue);
        full.put("earliest is now", earliest >= before - 1000 && earliest <= System.currentTimeMillis() + 1000);
        full.put("at 1", producer.searchOffset(queue, 1));
        full.put("an hour ago", producer.searchOffset(queue, System.currentTimeMillis() - HOUR_MS));
        c.say("of a full one", full);
        c.say("of a full one, in an hour", producer.searchOffset(queue, System.currentTimeMillis() + HOUR_MS));
        MessageQueue absent = new MessageQueue(c.topic, queue.getBrokerName(), 9);
        TreeMap<String, Object> none = new TreeMap<>();
        none.put("least", Case.outcome(() -> producer.minOffset(absent)));
        none.put("most", Case.outcome(() -> producer.maxOffset(absent)));
        none.put("earliest", Case.outcome(() -> producer.earliestMsgStoreTime(absent)));
        none.put("an hour ago", Case.outcome(() -> producer.searchOffset(absent, System.currentTimeMillis() - HOUR_MS)));
        c.say("of a queue that is not there", none);
    }

    private static void messages(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 1);
        List<MessageQueue> queues = Case.queues(producer, c.topic);
        SendResult result = producer.send(c.message("A", "one both", "first"), queues.get(0));
        producer.send(c.message("A", "two both", "second"), queues.get(1));
        c.say("by the client's id", Case.outcome(() -> viewed(producer, c.topic, result.getMsgId())));
        c.say("by the broker's id", Case.outcome(() -> viewed(producer, c.topic, result.getOffsetMsgId())));
        String unknown = result.getOffsetMsgId().substring(0, 16) + "00000000000FFFFF";
        c.say("by a broker's id without message", Case.outcome(() -> Case.body(producer.viewMessage(c.topic, unknown))));
        String other = result.getMsgId().substring(0, 31) + (result.getMsgId().endsWith("0") ? "1" : "0");
        c.say("by a client's id without message", Case.outcome(() -> String.valueOf(producer.viewMessage(c.topic, other))));
        for (String key : List.of("one", "both", "none")) {
            c.say("by key " + key, Case.outcome(() -> found(producer, c.topic, key, 0, Long.MAX_VALUE)));
        }
        long hour = System.currentTimeMillis() - HOUR_MS;
        c.say("by key, an hour ago", Case.outcome(() -> found(producer, c.topic, "both", hour - 1000, hour)));
    }

    private static String viewed(DefaultMQProducer producer, String topic, String id) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        Case.await("the index", () -> {
            Object given = Case.outcome(() -> producer.viewMessage(topic, id));
            if (given instanceof MessageExt) {
                found.add((MessageExt) given);
            }
            return !found.isEmpty();
        });
        return Case.body(found.get(0)) + " " + found.get(0).getQueueOffset() + " " + found.get(0).getTags();
    }

    private static List<String> found(DefaultMQProducer producer, String topic, String key, long begin, long end) throws Exception {
        return Case.sorted(Case.bodies(producer.queryMessage(topic, key, 10, begin, end).getMessageList()));
    }
}
