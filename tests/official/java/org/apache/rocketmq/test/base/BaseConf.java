package org.apache.rocketmq.test.base;

import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.test.client.rmq.RMQAsyncSendProducer;
import org.apache.rocketmq.test.client.rmq.RMQNormalConsumer;
import org.apache.rocketmq.test.client.rmq.RMQNormalProducer;
import org.apache.rocketmq.test.client.rmq.RMQTransactionalProducer;
import org.apache.rocketmq.test.clientinterface.AbstractMQConsumer;
import org.apache.rocketmq.test.clientinterface.AbstractMQProducer;
import org.apache.rocketmq.test.factory.ConsumerFactory;
import org.apache.rocketmq.test.listener.AbstractListener;
import org.apache.rocketmq.test.util.MQAdmin;

/**
 * Stands before the class of this name in RocketMQ's test jar, whose tests extend it: that one starts a name
 * server and two brokers in this process, ours takes a cluster that runs elsewhere. System properties:
 * official.nameserver is its address; official.cluster, official.broker1 and official.broker2 are its names.
 *
 * The names and types are what the compiled tests link against; unused ones are left out.
 */
public class BaseConf {
    public static String nsAddr = System.getProperty("official.nameserver");
    protected static String clusterName = System.getProperty("official.cluster", "DefaultCluster");
    protected static String broker1Name = System.getProperty("official.broker1", "broker-a");
    protected static String broker2Name = System.getProperty("official.broker2", "broker-b");
    protected static int brokerNum = 2;

    /** Queues of each broker: as many as the tests expect. */
    private static final int QUEUES = 8;
    /** Each try waits for 5 s. */
    private static final int TOPIC_TRIES = 6;

    /** Seconds, and milliseconds: how long tests wait for something to happen; those of the tests' own. */
    protected static int waitTime = 5;
    protected static int consumeTime = 120_000;

    /** What `shutdown` ends; tests add to it, and take from it by index. */
    protected static List<Object> mqClients = new ArrayList<>();

    public static String initTopic() {
        return initTopicWithName(name());
    }

    public static String initTopicWithName(String topic) {
        for (int tries = 0; tries < TOPIC_TRIES; tries++) {
            if (MQAdmin.createTopic(nsAddr, clusterName, topic, QUEUES)) {
                return topic;
            }
        }
        throw new IllegalStateException("the topic " + topic + " can't be made, or has no statistics, at " + nsAddr);
    }

    public static String initConsumerGroup() {
        return initConsumerGroup(name());
    }

    public static String initConsumerGroup(String group) {
        MQAdmin.createSub(nsAddr, clusterName, group);
        return group;
    }

    public static RMQNormalProducer getProducer(String nameServer, String topic) {
        return kept(new RMQNormalProducer(nameServer, topic));
    }

    public static RMQNormalProducer getProducer(String nameServer, String topic, boolean tls) {
        return kept(new RMQNormalProducer(nameServer, topic, tls));
    }

    public static RMQNormalProducer getProducer(String nameServer, String topic, String group, String instance) {
        return kept(new RMQNormalProducer(nameServer, topic, group, instance));
    }

    public static RMQAsyncSendProducer getAsyncProducer(String nameServer, String topic) {
        return kept(new RMQAsyncSendProducer(nameServer, topic));
    }

    public static RMQTransactionalProducer getTransactionalProducer(
            String nameServer, String topic, TransactionListener listener) {
        return kept(new RMQTransactionalProducer(nameServer, topic, listener));
    }

    public static RMQNormalConsumer getConsumer(
            String nameServer, String topic, String expression, AbstractListener listener) {
        return getConsumer(nameServer, initConsumerGroup(), topic, expression, listener);
    }

    public static RMQNormalConsumer getConsumer(
            String nameServer, String topic, String expression, AbstractListener listener, boolean tls) {
        String group = initConsumerGroup();
        return kept(ConsumerFactory.getRMQNormalConsumer(nameServer, group, topic, expression, listener, tls));
    }

    public static RMQNormalConsumer getConsumer(
            String nameServer, String group, String topic, String expression, AbstractListener listener) {
        return kept(ConsumerFactory.getRMQNormalConsumer(nameServer, group, topic, expression, listener));
    }

    public static void shutdown() {
        List<Object> ended = new ArrayList<>(mqClients);
        mqClients.clear();
        for (Object client : ended) {
            if (client instanceof AbstractMQProducer) {
                ((AbstractMQProducer) client).shutdown();
            } else {
                ((AbstractMQConsumer) client).shutdown();
            }
        }
    }

    /** Names must differ between runs: a cluster may serve several. */
    private static String name() {
        return "T" + UUID.randomUUID().toString().replace("-", "");
    }

    private static <T> T kept(T client) {
        mqClients.add(client);
        return client;
    }
}
