import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Commands of mqadmin in one process, while a producer and a push consumer of it are alive.
 *
 * Arguments: name server, topic, group. It sends ten messages and waits until they are consumed, and prints
 * "ready CLIENT MESSAGE UNIQUE": the consumer's client id, and a message's offset id and unique id. Each line of
 * standard input is a command with words separated by tabs; its output ends with a line "### end".
 */
public final class AdminCommands {
    public static void main(String[] arguments) throws Exception {
        String names = arguments[0], topic = arguments[1], group = arguments[2];
        DefaultMQProducer producer = new DefaultMQProducer(group + "-producer", true, null);
        producer.setNamesrvAddr(names);
        producer.start();
        String message = "", unique = "";
        for (int i = 0; i < 10; i++) {
            SendResult sent = producer.send(new Message(topic, "TagA", "key" + i, ("m" + i).getBytes()));
            message = sent.getOffsetMsgId();
            unique = sent.getMsgId();
        }
        CountDownLatch consumed = new CountDownLatch(10);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(names);
        consumer.setInstanceName("consumer");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "TagA || TagB");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(one -> consumed.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean all = consumed.await(45, TimeUnit.SECONDS);
        String client = consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
        System.out.println((all ? "ready " : "missing ") + client + " " + message + " " + unique);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            MQAdminStartup.main0((line + "\t-n\t" + names).split("\t"), null);
            System.out.println("\n### end");
        }
        consumer.shutdown();
        producer.shutdown();
        System.exit(0);
    }
}
