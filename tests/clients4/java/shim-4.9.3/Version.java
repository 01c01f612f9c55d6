import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/** What is written in another way for a client of 5.x. */
final class Version {
    /** Whether a producer can put asynchronous sends together by itself. */
    static final boolean BATCHES = false;

    static void createTopic(DefaultMQProducer producer, String topic, int queues) throws Exception {
        producer.createTopic("TBW102", topic, queues);
    }

    static void broadcasting(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    static void batch(DefaultMQProducer producer) {
        throw new UnsupportedOperationException("this client does not put sends together by itself");
    }
}
