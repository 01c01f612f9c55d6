import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * What RocketMQ's own classes make of a server's answers to tools.
 *
 * Arguments: name server, broker, cluster, topic, group. It sends messages one by one and a batch, consumes all, and
 * has the group send one back; then it asks what RocketMQ's exporter and its Dashboard ask, and prints a line for
 * each: "#", name of the call, a tab, and its result as JSON, or "!" and an exception. "absent" stands where this
 * version has no such call. "ids" counts the ids of all messages. After "ready", with the consumer's client id, it lives on until its input ends.
 */
public final class ToolAnswers {
    private static final int MESSAGES = 10, TRIES = 80;
    private static final DefaultMQAdminExt ADMIN = new DefaultMQAdminExt();

    public static void main(String[] arguments) throws Exception {
        String names = arguments[0], broker = arguments[1], cluster = arguments[2], topic = arguments[3], group = arguments[4];
        ADMIN.setNamesrvAddr(names);
        ADMIN.start();
        DefaultMQProducer producer = new DefaultMQProducer(group + "-producer");
        producer.setNamesrvAddr(names);
        producer.start();
        List<Message> batch = new ArrayList<>();
        String message = "";
        for (int i = 0; i < MESSAGES; i++) {
            SendResult sent = producer.send(new Message(topic, "TagA", "key" + i, ("m" + i).getBytes()));
            message = sent.getOffsetMsgId();
            batch.add(new Message(topic, "TagA", "batch" + i, ("b" + i).getBytes()));
        }
        producer.send(batch);
        CountDownLatch consumed = new CountDownLatch(2 * MESSAGES);
        AtomicBoolean back = new AtomicBoolean();
        Set<String> ids = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(names);
        consumer.setInstanceName("consumer");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(1000);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(one -> {
                ids.add(MessageClientIDSetter.getUniqID(one));
                consumed.countDown();
            });
            if (back.compareAndSet(false, true)) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!consumed.await(60, TimeUnit.SECONDS)) {
            System.out.println("missing " + consumed.getCount());
            System.exit(1);
        }
        System.out.println("#ids\t" + ids.size());
        String client = consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
        String both = topic + "@" + group;
        show("examineBrokerClusterInfo");
        show("fetchAllTopicList");
        show("examineTopicRouteInfo", topic);
        show("examineTopicStats", topic);
        show("examineTopicConfig", broker, topic);
        show("queryTopicConsumeByWho", topic);
        until("examineConsumerConnectionInfo", group);
        until("examineProducerConnectionInfo", group + "-producer", topic);
        show("getAllProducerInfo", broker);
        until("examineConsumeStats", group);
        until("examineConsumeStats", group, topic);
        show("fetchConsumeStatsInBroker", broker, false, 5000L);
        show("getConsumerRunningInfo", group, client, false);
        show("getAllTopicConfig", broker, 5000L);
        show("getAllSubscriptionGroup", broker, 5000L);
        show("getBrokerConfig", broker);
        show("getBrokerHAStatus", broker);
        show("viewMessage", message);
        show("queryMessage", topic, "key3", 10, 0L, Long.MAX_VALUE);
        for (String name : new String[] {"TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"}) {
            until("viewBrokerStatsData", broker, name, topic);
        }
        for (String name : new String[] {"GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS"}) {
            until("viewBrokerStatsData", broker, name, both);
        }
        for (String name : new String[] {"BROKER_PUT_NUMS", "BROKER_GET_NUMS"}) {
            until("viewBrokerStatsData", broker, name, cluster);
        }
        show("fetchBrokerRuntimeStats", broker);
        System.out.println("ready " + client);
        while (System.in.read() >= 0) {
        }
        System.exit(0);
    }

    /** Prints what a call gives once it gives something: members, positions and statistics come with time. */
    private static void until(String name, Object... arguments) throws Exception {
        for (int i = 0; i < TRIES; i++) {
            try {
                find(name, arguments).invoke(ADMIN, arguments);
                break;
            } catch (InvocationTargetException error) {
                Thread.sleep(500);
            }
        }
        show(name, arguments);
    }

    private static void show(String name, Object... arguments) throws Exception {
        String text;
        try {
            Method found = find(name, arguments);
            text = found == null ? "absent" : RemotingSerializable.toJson(found.invoke(ADMIN, arguments), false);
        } catch (InvocationTargetException error) {
            text = "!" + String.valueOf(error.getCause()).replaceAll("\\s+", " ");
        }
        String label = name.equals("viewBrokerStatsData") ? name + " " + arguments[1] : name + " " + arguments.length;
        System.out.println("#" + label + "\t" + text);
    }

    private static Method find(String name, Object... arguments) {
        return Arrays.stream(DefaultMQAdminExt.class.getMethods())
            .filter(one -> one.getName().equals(name) && takes(one, arguments)).findFirst().orElse(null);
    }

    private static boolean takes(Method method, Object... arguments) {
        Class<?>[] kinds = method.getParameterTypes();
        if (kinds.length != arguments.length) {
            return false;
        }
        for (int i = 0; i < kinds.length; i++) {
            Class<?> given = arguments[i].getClass(), wanted = kinds[i];
            boolean fits = wanted.isAssignableFrom(given) || wanted == long.class && given == Long.class
                || wanted == int.class && given == Integer.class || wanted == boolean.class && given == Boolean.class;
            if (!fits) {
                return false;
            }
        }
        return true;
    }
}
