import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Runs scenarios with RocketMQ's remoting client against a cluster: Scenarios NAMESERVER RUN NAME ...
 *
 * RUN is what topics and groups are named after, so that a cluster can have several runs. Without words, the names
 * of all scenarios are printed. Each prints one line when it has ended, "@outcome " and a JSON object:
 *
 *   {"outcome": {...}, "scenario": "send_sync", "seconds": 1.4}
 *
 * An error that a scenario does not expect stands in its outcome as "error".
 */
public final class Scenarios {
    interface Scenario {
        void run(Case scenario) throws Exception;
    }

    static final Map<String, Scenario> ALL = new LinkedHashMap<>();

    private static final int THREADS = 4; // scenarios at a time: they mostly wait

    public static void main(String[] words) throws Exception {
        Sends.register();
        Pushes.register();
        Pulls.register();
        if (words.length == 0) {
            ALL.keySet().forEach(System.out::println);
            return;
        }
        Case.nameServer = words[0];
        Case.run = words[1];
        ExecutorService threads = Executors.newFixedThreadPool(THREADS);
        for (String name : List.of(words).subList(2, words.length)) {
            if (!ALL.containsKey(name)) {
                throw new IllegalArgumentException("there is no scenario " + name);
            }
            threads.execute(() -> play(name));
        }
        threads.shutdown();
        threads.awaitTermination(1, TimeUnit.HOURS);
        System.exit(0); // clients keep threads
    }

    private static void play(String name) {
        long began = System.nanoTime();
        Case scenario = new Case(name);
        try {
            ALL.get(name).run(scenario);
        } catch (Throwable error) {
            scenario.say("error", error.toString());
            error.printStackTrace();
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        String outcome = Json.text(scenario.said);
        synchronized (Scenarios.class) {
            String line = "@outcome {\"outcome\": %s, \"scenario\": \"%s\", \"seconds\": %.1f}";
            System.out.println(String.format(line, outcome, name, seconds)); // in one piece
            System.out.flush();
        }
        try {
            scenario.end();
        } catch (RuntimeException error) {
            error.printStackTrace();
        }
    }

    /** Writes maps, lists, texts, numbers and booleans; both versions of the client bring other libraries for that. */
    static final class Json {
        static String text(Object value) {
            StringBuilder out = new StringBuilder();
            write(out, value);
            return out.toString();
        }

        private static void write(StringBuilder out, Object value) {
            if (value instanceof Map) {
                String separator = "{";
                for (Map.Entry<?, ?> each : ((Map<?, ?>) value).entrySet()) {
                    out.append(separator);
                    write(out, String.valueOf(each.getKey()));
                    out.append(": ");
                    write(out, each.getValue());
                    separator = ", ";
                }
                out.append(((Map<?, ?>) value).isEmpty() ? "{}" : "}");
            } else if (value instanceof List) {
                String separator = "";
                out.append("[");
                for (Object each : (List<?>) value) {
                    out.append(separator);
                    write(out, each);
                    separator = ", ";
                }
                out.append("]");
            } else if (value == null || value instanceof Number || value instanceof Boolean) {
                out.append(value);
            } else {
                quote(out, value.toString());
            }
        }

        private static void quote(StringBuilder out, String text) {
            out.append('"');
            for (char each : text.toCharArray()) {
                if (each == '"' || each == '\\') {
                    out.append('\\').append(each);
                } else if (each < ' ') {
                    out.append(String.format("\\u%04x", (int) each));
                } else {
                    out.append(each);
                }
            }
            out.append('"');
        }
    }
}
