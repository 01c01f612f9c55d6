import com.alibaba.fastjson.JSON;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.Result;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Runs the test classes that standard input names, one a line, and tells of each on standard output, in lines
 * that begin with "@official " and go on as JSON:
 *
 *   {"test": "method"}                                                 it begins
 *   {"class": NAME, "run": 3, "failures": [{"test","why","at"}, ...]}  the class has ended
 */
public class Official {
    private static final String PACKAGE = "org.apache.rocketmq.test.";

    public static void main(String[] words) throws Exception {
        PrintStream out = System.out; // tests may put another one in its place
        JUnitCore core = new JUnitCore();
        core.addListener(new RunListener() {
            @Override
            public void testStarted(Description test) {
                Map<String, Object> said = new LinkedHashMap<>();
                said.put("test", test.getMethodName());
                say(out, said);
            }
        });
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String name; (name = input.readLine()) != null; ) {
            Result result = core.run(Request.aClass(Class.forName(PACKAGE + name)));
            List<Map<String, Object>> failures = new ArrayList<>();
            for (Failure each : result.getFailures()) {
                failures.add(told(each));
            }
            Map<String, Object> said = new LinkedHashMap<>();
            said.put("class", name);
            said.put("run", result.getRunCount());
            said.put("failures", failures);
            say(out, said);
        }
        System.exit(0); // clients that tests left behind have threads
    }

    private static void say(PrintStream out, Map<String, Object> said) {
        out.println("@official " + JSON.toJSONString(said));
        out.flush();
    }

    private static Map<String, Object> told(Failure failure) {
        Map<String, Object> said = new LinkedHashMap<>();
        Throwable why = failure.getException();
        said.put("test", String.valueOf(failure.getDescription().getMethodName()));
        said.put("why", String.valueOf(why));
        said.put("at", "");
        for (StackTraceElement place : why.getStackTrace()) {
            if (place.getClassName().startsWith(PACKAGE) && place.getClassName().contains("IT")) {
                said.put("at", place.getFileName() + ":" + place.getLineNumber());
                break;
            }
        }
        return said;
    }
}
