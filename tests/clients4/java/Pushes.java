import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What push consumers do. */
final class Pushes {
    static void register() {
        Scenarios.ALL.put("push_tags", Pushes::tags);
        Scenarios.ALL.put("push_sql", Pushes::sql);
        Scenarios.ALL.put("push_goes_on", Pushes::goesOn);
        Scenarios.ALL.put("push_woken", Pushes::woken);
        Scenarios.ALL.put("push_last_offset", Pushes::lastOffset);
        Scenarios.ALL.put("push_two_members", Pushes::twoMembers);
        Scenarios.ALL.put("push_broadcast", Pushes::broadcast);
        Scenarios.ALL.put("push_orderly", Pushes::orderly);
        Scenarios.ALL.put("push_orderly_failing", Pushes::orderlyFailing);
        Scenarios.ALL.put("push_failing", Pushes::failing);
    }

    /** Send to each queue: `each` messages, tagged A, B, C in turn, with a property of their number. */
    private static void fill(Case c, DefaultMQProducer producer, int each, String prefix) throws Exception {
        List<MessageQueue> queues = Case.queues(producer, c.topic);
        for (MessageQueue queue : queues) {
            for (int number = 0; number < each; number++) {
                String body = prefix + queues.indexOf(queue) + "-" + number;
                Message message = c.message("ABC".substring(number % 3, number % 3 + 1), "k" + number, body);
                message.putUserProperty("n", "" + number);
                message.putUserProperty("colour", number % 2 == 0 ? "red" : "blue");
                producer.send(message, queue);
            }
        }
    }

    private static void tags(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 2);
        fill(c, producer, 3, "m");
        DefaultMQPushConsumer consumer = c.push(c.group);
        Got got = c.collecting(consumer, "A || C");
        Case.await("all of two tags", () -> got.count() >= 8);
        Got others = c.collecting(c.push(c.group + "_b"), "B");
        Case.await("all of the third", () -> others.count() >= 4);
        Case.pass(300);
        c.say("got", got.bodies());
        c.say("got by the other group", others.bodies());
        for (MessageExt each : got.all()) {
            if (Case.body(each).equals("m0-0")) {
                c.say("properties", c.properties(each));
            }
        }
        consumer.shutdown();
        c.say("committed", c.committed(c.group));
    }

    private static void sql(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 1);
        fill(c, producer, 6, "m");
        DefaultMQPushConsumer consumer = c.push(c.group);
        Got got = new Got();
        consumer.subscribe(c.topic, MessageSelector.bySql("n between 1 and 4 AND colour = 'blue'"));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            got.add(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Case.await("those that fit", () -> got.count() >= 4);
        Case.pass(300);
        c.say("got", got.bodies());
        for (String wrong : List.of("n >", "n > 1 AND", "= 3")) {
            c.say("start with " + wrong, Case.outcome(() -> {
                DefaultMQPushConsumer other = c.push(c.group + "_w");
                other.subscribe(c.topic, MessageSelector.bySql(wrong));
                other.registerMessageListener((MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
                other.start();
                return "started";
            }));
        }
    }

    private static void goesOn(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 2);
        fill(c, producer, 2, "first");
        DefaultMQPushConsumer consumer = c.push(c.group);
        Got got = c.collecting(consumer, "*");
        Case.await("the first", () -> got.count() >= 8);
        consumer.shutdown();
        c.say("committed", c.committed(c.group));
        fill(c, producer, 2, "second");
        Got later = c.collecting(c.push(c.group), "*");
        Case.await("the second", () -> later.count() >= 8);
        Case.pass(300);
        c.say("got", got.bodies());
        c.say("got later", later.bodies());
    }

    private static void woken(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 1);
        Got got = c.collecting(c.push(c.group), "A");
        producer.send(c.message("A", "k", "first"));
        Case.await("the first", () -> got.count() == 1);
        Case.pass(1000); // pulls are held now
        List<Boolean> prompt = new ArrayList<>();
        for (int number = 0; number < 5; number++) {
            String body = "m" + number;
            producer.send(c.message("B", "k", "another tag"));
            long sent = System.currentTimeMillis();
            producer.send(c.message("A", "k", body));
            Case.await(body, () -> got.has(body));
            prompt.add(got.arrival(body) - sent < 2000); // else it was the next poll, after 15 s
        }
        c.say("each within 2 s", prompt);
        c.say("got", got.bodies());
    }

    private static void lastOffset(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 1);
        fill(c, producer, 2, "before");
        DefaultMQPushConsumer consumer = c.push(c.group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        Got got = c.collecting(consumer, "*");
        Case.await("its queues", () -> c.held(consumer) == 2);
        Case.pass(1000);
        fill(c, producer, 1, "after");
        Case.await("what came after", () -> got.has("after0-0") && got.has("after1-0"));
        Case.pass(300);
        c.say("got by a new group of a young topic", got.bodies());
    }

    private static void twoMembers(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 4);
        DefaultMQPushConsumer one = c.push(c.group);
        Got ones = c.collecting(one, "*");
        Case.await("all queues", () -> c.held(one) == 8);
        DefaultMQPushConsumer two = c.push(c.group);
        Got twos = c.collecting(two, "*");
        Case.await("half of the queues each", () -> c.held(one) == 4 && c.held(two) == 4);
        fill(c, producer, 2, "two");
        Case.await("all", () -> ones.count() + twos.count() >= 16);
        c.say("with two members", List.of(ones.queues(), twos.queues(), all(ones, twos)));
        two.shutdown();
        Case.await("all queues again", () -> c.held(one) == 8);
        int before = ones.count();
        fill(c, producer, 1, "one");
        Case.await("all of one", () -> ones.count() >= before + 8);
        c.say("with one again", all(ones, twos).size());
    }

    private static List<String> all(Got ones, Got twos) {
        List<String> found = new ArrayList<>(ones.bodies());
        found.addAll(twos.bodies());
        return Case.sorted(found);
    }

    private static void broadcast(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 2);
        DefaultMQPushConsumer one = c.push(c.group);
        DefaultMQPushConsumer two = c.push(c.group);
        Version.broadcasting(one);
        Version.broadcasting(two);
        Got ones = c.collecting(one, "*");
        Got twos = c.collecting(two, "*");
        Case.await("their queues", () -> c.held(one) == 4 && c.held(two) == 4);
        fill(c, producer, 2, "m");
        Case.await("all for both", () -> ones.count() >= 8 && twos.count() >= 8);
        Case.pass(300);
        c.say("got by one", ones.bodies());
        c.say("got by the other", twos.bodies());
        one.shutdown();
        two.shutdown();
        c.say("committed at brokers", c.committed(c.group));
    }

    private static void orderly(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 2);
        fill(c, producer, 10, "m");
        DefaultMQPushConsumer consumer = c.push(c.group);
        Got got = new Got();
        TreeSet<String> failed = new TreeSet<>();
        consumer.subscribe(c.topic, "*");
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            synchronized (failed) {
                if (Case.body(messages.get(0)).endsWith("-5") && failed.add(Case.body(messages.get(0)))) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT; // the same comes first again
                }
            }
            got.add(messages);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        Case.await("all", () -> got.count() >= 40);
        Case.pass(300);
        c.say("got", got.count());
        c.say("ordered", got.ordered());
        c.say("failed once", new ArrayList<>(failed));
        consumer.shutdown();
        c.say("committed", c.committed(c.group));
    }

    private static void orderlyFailing(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 1);
        MessageQueue queue = Case.queues(producer, c.topic).get(0);
        for (String body : List.of("before", "bad", "after")) {
            producer.send(c.message("A", "k", body), queue);
        }
        DefaultMQPushConsumer consumer = c.push(c.group);
        Got got = new Got();
        consumer.subscribe(c.topic, "*");
        consumer.setMaxReconsumeTimes(2);
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            got.add(messages);
            boolean bad = Case.body(messages.get(0)).equals("bad");
            return bad ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        Case.await("the one after it", () -> got.has("after"));
        c.say("tries", got.tries("bad"));
        c.say("got", Case.bodies(got.all()));
        List<MessageExt> dead = c.dead(producer, "k");
        c.say("dead letters", Case.bodies(dead));
        c.say("properties of the dead letter", c.properties(dead.get(0)));
    }

    private static void failing(Case c) throws Exception {
        DefaultMQProducer producer = c.producerOf(c.topic, 1);
        DefaultMQPushConsumer consumer = c.push(c.group);
        Got got = new Got();
        consumer.subscribe(c.topic, "*");
        consumer.setMaxReconsumeTimes(2);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            got.add(messages);
            MessageExt message = messages.get(0);
            String body = Case.body(message);
            context.setDelayLevelWhenNextConsume(1);
            boolean fails = body.equals("fails always") || body.equals("fails once") && message.getReconsumeTimes() == 0;
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        for (String body : List.of("fails never", "fails once", "fails always")) {
            producer.send(c.message("A", "k", body));
        }
        Case.await("the last try", () -> got.tries("fails always").size() >= 3 && got.tries("fails once").size() >= 2);
        List<MessageExt> dead = c.dead(producer, "k");
        for (String body : List.of("fails never", "fails once", "fails always")) {
            c.say("tries: " + body, got.tries(body));
        }
        for (MessageExt each : got.all()) {
            if (Case.body(each).equals("fails once") && each.getReconsumeTimes() == 1) {
                c.say("properties of the second try", c.properties(each));
                c.say("topic of the second try", each.getTopic().equals(c.topic));
            }
        }
        c.say("dead letters", Case.bodies(dead));
        c.say("tries of the dead letter", dead.get(0).getReconsumeTimes());
        c.say("properties of the dead letter", c.properties(dead.get(0)));
        consumer.shutdown();
        c.say("committed", c.committed(c.group));
    }
}
