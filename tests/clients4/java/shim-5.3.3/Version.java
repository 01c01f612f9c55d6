import java.util.Collections;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** What is written in another way for a client of 4.x. */
final class Version {
    /** Whether a producer can put asynchronous sends together by itself. */
    static final boolean BATCHES = true;

    static void createTopic(DefaultMQProducer producer, String topic, int queues) throws Exception {
        producer.createTopic("TBW102", topic, queues, Collections.emptyMap());
    }

    static void broadcasting(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    static void batch(DefaultMQProducer producer) {
        producer.setAutoBatch(true);
        producer.batchMaxDelayMs(20);
    }
}
