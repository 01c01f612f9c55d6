import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.rocketmq.remoting.protocol.EpochEntry;
import org.apache.rocketmq.store.ha.autoswitch.EpochFileCache;

/**
 * Answers what RocketMQ's own lists of epochs say.
 *
 * <p>Standard input: a case a line: the local list, the local log's end, the master's list, its log's end, between
 * spaces; a list is "-" or epoch:start,epoch:start. Standard output: a line each: the consistent point, the local list
 * after it was truncated there, and the text of the local checkpoint file before the truncation with "|" for line ends.
 * The first argument names a directory for that file; where there is one in it called "given", its list comes first.
 */
public final class EpochOracle {
    private static List<EpochEntry> parsed(String text) {
        List<EpochEntry> entries = new ArrayList<>();
        if (!text.equals("-")) {
            for (String pair : text.split(",")) {
                String[] numbers = pair.split(":");
                entries.add(new EpochEntry(Integer.parseInt(numbers[0]), Long.parseLong(numbers[1])));
            }
        }
        return entries;
    }

    private static String shown(EpochFileCache cache) {
        String text = cache.getAllEntries().stream()
            .map(entry -> entry.getEpoch() + ":" + entry.getStartOffset())
            .collect(Collectors.joining(","));
        return text.isEmpty() ? "-" : text;
    }

    public static void main(String[] arguments) throws Exception {
        File given = new File(arguments[0], "given");
        if (given.exists()) {
            EpochFileCache cache = new EpochFileCache(given.getPath());
            System.out.println(cache.initCacheFromFile() ? shown(cache) : "REFUSED");
        }
        File file = new File(arguments[0], "epochFileCheckpoint");
        BufferedReader cases = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder answers = new StringBuilder();
        for (String line = cases.readLine(); line != null; line = cases.readLine()) {
            String[] fields = line.split(" ");
            file.delete();
            EpochFileCache local = new EpochFileCache(file.getPath());
            local.initCacheFromEntries(parsed(fields[0]));
            local.setLastEpochEntryEndOffset(Long.parseLong(fields[1]));
            EpochFileCache master = new EpochFileCache();
            master.initCacheFromEntries(parsed(fields[2]));
            master.setLastEpochEntryEndOffset(Long.parseLong(fields[3]));
            String text = "";
            if (file.exists()) {
                text = new String(Files.readAllBytes(file.toPath()), StandardCharsets.UTF_8).replace("\n", "|");
            }
            long point = local.findConsistentPoint(master);
            if (point >= 0) {
                local.truncateSuffixByOffset(point);
            }
            answers.append(point).append(' ').append(shown(local)).append(' ').append(text).append('\n');
        }
        System.out.print(answers);
    }
}
