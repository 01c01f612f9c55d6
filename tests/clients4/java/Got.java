import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What a consumer was given. */
final class Got {
    private final List<MessageExt> messages = new ArrayList<>();
    private final Map<String, Long> arrivals = new HashMap<>();
    private final Map<String, List<Integer>> tries = new HashMap<>(); // noted at once: clients count on in the same object

    synchronized void add(List<MessageExt> given) {
        for (MessageExt each : given) {
            messages.add(each);
            arrivals.putIfAbsent(Case.body(each), System.currentTimeMillis());
            tries.computeIfAbsent(Case.body(each), body -> new ArrayList<>()).add(each.getReconsumeTimes());
        }
    }

    synchronized List<MessageExt> all() {
        return new ArrayList<>(messages);
    }

    synchronized int count() {
        return messages.size();
    }

    synchronized boolean has(String body) {
        return arrivals.containsKey(body);
    }

    /** When a body came first, by this process's clock. */
    synchronized long arrival(String body) {
        return arrivals.get(body);
    }

    /** All bodies, those that came twice twice. */
    List<String> bodies() {
        return Case.sorted(Case.bodies(all()));
    }

    /** How many queues messages came from. */
    int queues() {
        TreeSet<MessageQueue> found = new TreeSet<>();
        all().forEach(each -> found.add(new MessageQueue(each.getTopic(), each.getBrokerName(), each.getQueueId())));
        return found.size();
    }

    /** Whether each queue's messages came by their offsets, each once. */
    boolean ordered() {
        Map<String, Long> last = new HashMap<>();
        for (MessageExt each : all()) {
            Long before = last.put(each.getBrokerName() + each.getQueueId(), each.getQueueOffset());
            if (before != null && before >= each.getQueueOffset()) {
                return false;
            }
        }
        return true;
    }

    /** The counts of earlier tries that a body came with, in the order of arrival. */
    synchronized List<Integer> tries(String body) {
        return new ArrayList<>(tries.getOrDefault(body, List.of()));
    }
}
