import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * A 4.x producer and a push consumer that go on whatever happens to their cluster: numbered messages, each sent
 * until it is acknowledged. Says `acked N` and `got N`; `end` on its input ends the sends, and a closed input all.
 */
public final class Moving {
    private static volatile boolean sending = true;

    public static void main(String[] arguments) throws Exception {
        String names = arguments[0];
        String topic = arguments[1];
        Set<String> got = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("moving");
        consumer.setNamesrvAddr(names);
        consumer.setPollNameServerInterval(1000);
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.setPersistConsumerOffsetInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> {
                String number = new String(each.getBody(), StandardCharsets.UTF_8);
                say((got.add(number) ? "got " : "again ") + number);
            });
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = new DefaultMQProducer("moving-producer");
        producer.setNamesrvAddr(names);
        producer.setPollNameServerInterval(1000);
        producer.setHeartbeatBrokerInterval(1000);
        producer.start();
        Thread sender = new Thread(() -> send(producer, topic));
        sender.start();
        int read;
        while ((read = System.in.read()) >= 0) {
            if (read == 'e') {
                sending = false;
                sender.join();
                say("ended");
            }
        }
        producer.shutdown();
        consumer.shutdown();
    }

    private static void send(DefaultMQProducer producer, String topic) {
        for (int number = 0; sending; number++) {
            byte[] body = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
            while (true) {
                try {
                    producer.send(new Message(topic, "tag", "key" + number, body), 3000);
                    break;
                } catch (Exception error) {
                    pause(100);
                }
            }
            say("acked " + number);
            pause(5);
        }
    }

    private static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
