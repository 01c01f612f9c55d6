import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.DoubleStream;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** The Java SDK behind the words and lines of tests/sdks/README.md. */
public class Sdk {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final CountDownLatch ENDED = new CountDownLatch(1);

    static synchronized void say(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) {
            line.append(line.length() > 0 ? "\t" : "").append(String.valueOf(word).replaceAll("[\n\t]", " "));
        }
        System.out.println(line);
        System.out.flush();
    }

    /** Tells of an error with its causes: the server's own words are in the last one. */
    static String told(Throwable error) {
        StringBuilder text = new StringBuilder(error.toString());
        for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) {
            text.append(" <- ").append(cause);
        }
        return text.toString();
    }

    static String got(MessageView message) {
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        String text = new String(bytes, StandardCharsets.UTF_8);
        String group = message.getMessageGroup().orElse("");
        String due = message.getDeliveryTimestamp().map(String::valueOf).orElse("");
        String priority = message.getPriority().map(String::valueOf).orElse("");
        if (!(group + due + priority).isEmpty()) {
            say("also", text, group, due, priority);
        }
        say("got", text, message.getMessageId(), message.getDeliveryAttempt(), message.getTag().orElse(""),
            String.join(",", new TreeSet<>(message.getKeys())), message.getProperties().getOrDefault("own", ""));
        return text;
    }

    /** Begins message number n. */
    static MessageBuilder made(String topic, String prefix, int n) {
        return PROVIDER.newMessageBuilder().setTopic(topic)
            .setBody((prefix + "-" + n).getBytes(StandardCharsets.UTF_8)).setTag(n % 2 == 0 ? "a" : "b")
            .setKeys("key-" + n, prefix).addProperty("own", "value-" + n).addProperty("n", "" + n);
    }

    /** Sends one message, tells of it, and returns whether it was taken. */
    static boolean send(Producer producer, Message message, String body, Transaction transaction) {
        long started = System.nanoTime();
        try {
            SendReceipt receipt = transaction == null ? producer.send(message) : producer.send(message, transaction);
            String handle = receipt.getRecallHandle();
            if (handle != null && !handle.isEmpty()) {
                say("handle", body, handle);
            }
            say("sent", body, receipt.getMessageId(), (System.nanoTime() - started) / 1_000_000);
            return true;
        } catch (Throwable error) {
            say("failed", body, told(error));
            return false;
        }
    }

    static void special(String kind, ClientConfiguration configuration, String topic, String prefix, int count,
        String[] entries) throws Exception {
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics(topic).build()) {
            say("ready");
            for (int n = 0; n < count; n++) {
                String entry = entries[n % entries.length];
                MessageBuilder message = made(topic, prefix, n);
                if (kind.equals("fifo")) {
                    message.setMessageGroup(entry);
                } else if (kind.equals("delay")) {
                    message.setDeliveryTimestamp(System.currentTimeMillis() + Long.parseLong(entry));
                } else {
                    message.setPriority(Integer.parseInt(entry));
                }
                send(producer, message.build(), prefix + "-" + n, null);
            }
        }
    }

    static void transact(ClientConfiguration configuration, String topic, String prefix, int count, String[] ends,
        String answer) throws Exception {
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic)
            .setTransactionChecker(message -> {
                say("checked", StandardCharsets.UTF_8.decode(message.getBody()), answer);
                return TransactionResolution.valueOf(answer.toUpperCase());
            }).build()) {
            say("ready");
            for (int n = 0; n < count; n++) {
                String body = prefix + "-" + n;
                String end = ends[n % ends.length];
                Transaction transaction = producer.beginTransaction();
                if (!send(producer, made(topic, prefix, n).build(), body, transaction) || end.equals("leave")) {
                    continue;
                }
                try {
                    if (end.equals("commit")) {
                        transaction.commit();
                    } else {
                        transaction.rollback();
                    }
                    say("ended", body, end);
                } catch (Throwable error) {
                    say("failed", body, told(error));
                }
            }
            ENDED.await();
        }
    }

    /** Sends 1 KiB from several threads; what is sent while it warms up is part of the total alone. */
    static void load(ClientConfiguration configuration, String topic, int threads, double warm, double seconds)
        throws Exception {
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics(topic).build()) {
            say("ready");
            byte[] body = new byte[1024];
            long begin = System.nanoTime() + (long) (warm * 1e9);
            long end = begin + (long) (seconds * 1e9);
            long[] totals = new long[threads];
            long[] failures = new long[threads];
            double[][] took = new double[threads][];
            Thread[] senders = new Thread[threads];
            for (int i = 0; i < threads; i++) {
                int me = i;
                senders[i] = new Thread(() -> {
                    DoubleStream.Builder mine = DoubleStream.builder();
                    for (long now = System.nanoTime(); now < end;) {
                        boolean sent = true;
                        try {
                            producer.send(PROVIDER.newMessageBuilder().setTopic(topic).setTag("a").setBody(body).build());
                        } catch (Throwable error) {
                            sent = false;
                        }
                        long ended = System.nanoTime();
                        totals[me] += sent ? 1 : 0;
                        failures[me] += sent ? 0 : 1;
                        if (sent && now >= begin) {
                            mine.add((ended - now) / 1e6);
                        }
                        now = ended;
                    }
                    took[me] = mine.build().toArray();
                });
                senders[i].start();
            }
            for (Thread sender : senders) {
                sender.join();
            }
            double[] all = Arrays.stream(took).flatMapToDouble(Arrays::stream).sorted().toArray();
            int last = all.length - 1;
            say("load", Arrays.stream(totals).sum(), all.length, seconds, last < 0 ? 0 : all[last / 2],
                last < 0 ? 0 : all[(int) (last * .99)], Arrays.stream(failures).sum());
        }
    }

    static void recall(ClientConfiguration configuration, String topic, String[] handles) throws Exception {
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics(topic).build()) {
            say("ready");
            for (String handle : handles) {
                try {
                    say("recalled", handle, producer.recallMessage(topic, handle).getMessageId());
                } catch (Throwable error) {
                    say("failed", handle, told(error));
                }
            }
        }
    }

    static FilterExpression filter(String text) {
        return text.startsWith("sql:") ? new FilterExpression(text.substring(4), FilterExpressionType.SQL92)
            : new FilterExpression(text);
    }

    static void produce(ClientConfiguration configuration, String topic, String prefix, int count, int pause)
        throws Exception {
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics(topic).build()) {
            say("ready");
            for (int n = 0; count > 0 ? n < count : ENDED.getCount() > 0; n++) {
                send(producer, made(topic, prefix, n).build(), prefix + "-" + n, null);
                ENDED.await(pause, TimeUnit.MILLISECONDS);
            }
        }
    }

    static void simple(ClientConfiguration configuration, String topic, String group, String expression)
        throws Exception {
        Set<String> put = new HashSet<>();
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(group).setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(topic, filter(expression))).build()) {
            say("ready");
            while (ENDED.getCount() > 0) {
                try {
                    for (MessageView message : consumer.receive(32, Duration.ofSeconds(15))) {
                        String body = got(message);
                        if (body.startsWith("later") && put.add(body)) {
                            consumer.changeInvisibleDuration(message, Duration.ofSeconds(10));
                            say("later", body);
                        } else {
                            consumer.ack(message);
                            say("acked", body);
                        }
                    }
                } catch (Throwable error) {
                    say("error", told(error));
                    ENDED.await(200, TimeUnit.MILLISECONDS);
                }
            }
        }
    }

    static void push(ClientConfiguration configuration, String topic, String group, String expression)
        throws Exception {
        Set<String> failed = ConcurrentHashMap.newKeySet();
        try (PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(group).setConsumptionThreadCount(4)
            .setSubscriptionExpressions(Collections.singletonMap(topic, filter(expression)))
            .setMessageListener(message -> {
                String body = got(message);
                boolean dead = body.startsWith("dead");
                return dead || body.startsWith("fail") && failed.add(body) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build()) {
            say("ready");
            ENDED.await();
        }
    }

    public static void main(String[] words) throws Exception {
        Thread reader = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException error) {
                say("error", error);
            }
            ENDED.countDown();
        });
        reader.setDaemon(true);
        reader.start();
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(words[1]);
        if (System.getenv("SDK_PLAINTEXT") != null) {
            builder.enableSsl(false);
        }
        ClientConfiguration configuration = builder.build();
        try {
            switch (words[0]) {
                case "produce":
                    produce(configuration, words[2], words[3], Integer.parseInt(words[4]), Integer.parseInt(words[5]));
                    break;
                case "fifo":
                case "delay":
                case "priority":
                    special(words[0], configuration, words[2], words[3], Integer.parseInt(words[4]),
                        words[5].split(","));
                    break;
                case "transact":
                    transact(configuration, words[2], words[3], Integer.parseInt(words[4]), words[5].split(","),
                        words[6]);
                    break;
                case "load":
                    load(configuration, words[2], Integer.parseInt(words[3]), Double.parseDouble(words[4]),
                        Double.parseDouble(words[5]));
                    break;
                case "recall":
                    recall(configuration, words[2], words[3].split(","));
                    break;
                case "simple":
                    simple(configuration, words[2], words[3], words[4]);
                    break;
                default:
                    push(configuration, words[2], words[3], words[4]);
            }
        } catch (Throwable error) {
            say("error", told(error));
            System.exit(1);
        }
        say("done");
        System.exit(0);
    }
}
